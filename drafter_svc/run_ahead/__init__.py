"""What a drafter drafts while a verdict is pending: branches behind likely outcomes, and their announcement."""
