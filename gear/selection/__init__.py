"""Select: which items make the next batch, and which trajectory leaves."""
