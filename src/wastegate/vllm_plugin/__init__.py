"""What vLLM loads through its entry points: records of what each request cost, and settings of a running engine.

vLLM itself is imported only when a class of it is asked for; serving must never depend on anything here."""
