"""What is kept on disk: the journal of this moment and the ledger of all time. Only core's values come and go."""
