"""For people who build jobs or Penstock itself: a Kafka broker (`kafka`). No job needs anything from here."""
