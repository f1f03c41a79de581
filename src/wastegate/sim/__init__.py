"""Lifecycles in made-up time: the policy that ships, run against model replicas. No socket and no real clock."""
