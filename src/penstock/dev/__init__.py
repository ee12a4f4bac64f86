"""For people who build jobs or Penstock itself: a Kafka broker (`kafka`).

May import everything except `cli`. No job needs anything from here.
"""
