output "gateway" {
  description = "Base URL of the gateway. The key of the first client is in /etc/cognitora/api-key of that machine."
  value       = "http://${google_compute_instance.machine[local.head].network_interface[0].access_config[0].nat_ip}:8080/v1"
}

output "router" {
  description = "Address of the router's machine for SSH."
  value       = google_compute_instance.machine[local.head].network_interface[0].access_config[0].nat_ip
}

output "join" {
  description = "Command that lets each machine with engines join, by tokens that the router's machine makes."
  value       = local.single ? "" : join(" ", concat(["../shared/join", "cognitora@${google_compute_instance.machine[local.head].network_interface[0].access_config[0].nat_ip}"], [for name in var.gpu_nodes : "${name}=cognitora@${google_compute_instance.machine[name].network_interface[0].access_config[0].nat_ip}"]))
}
