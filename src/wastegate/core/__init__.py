"""The pure core: values and policy. No socket, clock, random number or environment variable enters here."""
