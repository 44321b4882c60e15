"""Random small clusters, and what kube-scheduler, Concerto and the rules of the API say of placing pods on them."""
