"""The demo: processes play CartPole into one buffer while another samples from it."""

from sqlbuffer.demo.plan import BUFFER, DemoPlan
from sqlbuffer.demo.run import Progress, Report, run

__all__ = ["BUFFER", "DemoPlan", "Progress", "Report", "run"]
