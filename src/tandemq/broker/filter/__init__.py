"""SQL92 filters: expressions over the properties of messages, and the subscriptions that use them."""
