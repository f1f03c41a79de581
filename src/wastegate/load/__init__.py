"""Load: traces are read, turned into prompts of the right length and sent open-loop; the policy that answers them
never enters here."""
