"""The reply address that travels with a command: one string that says who is told its outcome.

=======================  ==============================================================
``""``                   nobody waits
``"ADDRESS"``            an answer is sent to that inbox
``"handled@ADDRESS"``    an answer, and a notice of every subscriber that handles its events
``"crashes@NAME"``       nobody waits, but the process manager of this name handles its crash
=======================  ==============================================================

No inbox has an address that begins with a mark.
"""

from __future__ import annotations

_HANDLED = "handled@"
_CRASHES = "crashes@"


def reply_address(inbox: str, *, handling: bool = False) -> str:
    """Return the reply address for a command. ``handling`` says that its sender also waits until its events are
    handled.

    >>> reply_address("in1"), reply_address("in1", handling=True), reply_address("", handling=True)
    ('in1', 'handled@in1', '')
    """
    return _HANDLED + inbox if handling and inbox else inbox


def answer_address(reply_to: str) -> str:
    """Return the inbox for the answer.

    >>> answer_address("in1"), answer_address("handled@in1"), answer_address("")
    ('in1', 'in1', '')
    """
    return "" if reply_to.startswith(_CRASHES) else reply_to.removeprefix(_HANDLED)


def crashes_address(process_manager: str) -> str:
    """Return the address that a command carries if this process manager handles its crash; empty for an empty name.

    >>> crashes_address("bank.transfers"), crashes_address("")
    ('crashes@bank.transfers', '')
    """
    return _CRASHES + process_manager if process_manager else ""


def crash_handler_in(reply_to: str) -> str:
    """Return the name of the process manager that handles the command's crash, or an empty text.

    >>> crash_handler_in("crashes@bank.transfers"), crash_handler_in("in1")
    ('bank.transfers', '')
    """
    return reply_to.removeprefix(_CRASHES) if reply_to.startswith(_CRASHES) else ""


def notice_address(reply_to: str) -> str:
    """Return the inbox for notices, which the published stream carries. It is empty if nobody waits for them, so that
    commands that are only executed cost subscribers nothing.

    >>> notice_address("in1"), notice_address("handled@in1"), notice_address("")
    ('', 'in1', '')
    """
    return reply_to.removeprefix(_HANDLED) if reply_to.startswith(_HANDLED) else ""
