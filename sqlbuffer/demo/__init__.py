"""The demo: processes play CartPole into one buffer while another samples from it."""

from sqlbuffer.demo.plan import BUFFER, Plan
from sqlbuffer.demo.run import Progress, Report, run

__all__ = ["BUFFER", "Plan", "Progress", "Report", "run"]
