"""For people who build jobs or Penstock itself: a Kafka broker (`kafka`), and the job that is killed for show (`demo`).

May import everything except `cli`. No job needs anything from here.
"""
