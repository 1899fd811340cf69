// Says in the title of each time what the browser's clock has. The page itself shows the site's time zone.
"use strict";
addEventListener("DOMContentLoaded", () => {
  for (const time of document.querySelectorAll("time[datetime]")) {
    time.title = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
  }
});
