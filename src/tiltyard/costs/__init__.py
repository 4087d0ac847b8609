"""What tokens, votes and releases cost: engine time from the log, prices from the settings; nothing is guessed."""
