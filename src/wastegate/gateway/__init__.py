"""The asyncio shell: sockets, timers, processes. Every decision is asked of ``wastegate.core``; none is made here."""
