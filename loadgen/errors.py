"""What can keep a measurement from being made; the message says what to do."""

from services.common.errors import SetupError


class NoDocuments(SetupError):
    """The folder holds nothing that can be read."""


class StackDidNotStart(SetupError):
    """A service ended, or did not become ready in time."""


class BrokerFailed(SetupError):
    """No broker answers, or it refuses."""


class RunFailed(SetupError):
    """Documents failed or got lost, so that the figures would mean nothing."""


class PeerUnavailable(SetupError):
    """A peer's environment cannot be made here, or its run failed."""


class FloorFailed(SetupError):
    """The bare models could not be run."""


class OtherMachine(SetupError):
    """A report holds figures of another machine, to which none of this one may be added."""
