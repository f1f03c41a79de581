"""The workflow, a module a step: each has a Report, runs, and is judged. The gateway is reached over HTTP only."""

STEPS = ("audit",)
