"""The parts of a pop consumer: pops of one topic at one broker group, deliveries, acknowledgements."""
