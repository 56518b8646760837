"""Tools in chats: what is asked, how models write their calls, and how calls look in an answer."""
