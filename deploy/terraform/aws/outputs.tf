output "gateway" {
  description = "Base URL of the gateway. The key of the first client is in /etc/cognitora/api-key of that machine."
  value       = "http://${aws_instance.machine[local.head].public_ip}:8080/v1"
}

output "router" {
  description = "Address of the router's machine for SSH."
  value       = aws_instance.machine[local.head].public_ip
}

output "join" {
  description = "Command that lets each machine with engines join, by tokens that the router's machine makes."
  value       = local.single ? "" : join(" ", concat(["../shared/join", "admin@${aws_instance.machine[local.head].public_ip}"], [for name in var.gpu_nodes : "${name}=admin@${aws_instance.machine[name].public_ip}"]))
}
