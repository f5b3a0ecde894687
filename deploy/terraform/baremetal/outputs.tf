output "gateway" {
  description = "Base URL of the gateway. The key of the first client is in /etc/cognitora/api-key of that machine."
  value       = "http://${var.machines[local.head]}:8080/v1"
}

output "router" {
  description = "Address of the router's machine for SSH."
  value       = var.machines[local.head]
}

output "join" {
  description = "Command that lets each machine with engines join, by tokens that the router's machine makes."
  value       = local.single ? "" : join(" ", concat(["../shared/join", "root@${var.machines[local.head]}"], [for name in var.gpu_nodes : "${name}=root@${var.machines[name]}"]))
}
