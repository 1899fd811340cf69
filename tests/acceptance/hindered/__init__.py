"""An app that gets in the way of every handler of every subscriber, as files say."""
