output "gateway" {
  description = "Base URL of the gateway. The key of the first client is in /etc/cognitora/api-key of that machine."
  value       = "http://${hcloud_server.machine[local.head].ipv4_address}:8080/v1"
}

output "router" {
  description = "Address of the router's machine for SSH."
  value       = hcloud_server.machine[local.head].ipv4_address
}

output "join" {
  description = "Command that lets each machine with engines join, by tokens that the router's machine makes."
  value       = local.single ? "" : join(" ", concat(["../shared/join", "root@${hcloud_server.machine[local.head].ipv4_address}"], [for name in var.gpu_nodes : "${name}=root@${hcloud_server.machine[name].ipv4_address}"]))
}
