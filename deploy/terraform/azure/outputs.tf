output "gateway" {
  description = "Base URL of the gateway. The key of the first client is in /etc/cognitora/api-key of that machine."
  value       = "http://${azurerm_public_ip.machine[local.head].ip_address}:8080/v1"
}

output "router" {
  description = "Address of the router's machine for SSH."
  value       = azurerm_public_ip.machine[local.head].ip_address
}

output "join" {
  description = "Command that lets each machine with engines join, by tokens that the router's machine makes."
  value       = local.single ? "" : join(" ", concat(["../shared/join", "cognitora@${azurerm_public_ip.machine[local.head].ip_address}"], [for name in var.gpu_nodes : "${name}=cognitora@${azurerm_public_ip.machine[name].ip_address}"]))
}
