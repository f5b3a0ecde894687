variable "cluster_name" {
  description = "Name of the cluster: a prefix of its machines, and cluster.name of the settings."
  type        = string
  default     = "cognitora"
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}$", var.cluster_name))
    error_message = "cluster_name is lower-case letters, digits and dashes, at most 31, and begins with a letter."
  }
}

variable "release" {
  description = "Release to install: its version, the folder that has it, and the SHA-256 of install.sh there, which is not run if it is another one."
  type = object({
    version          = string
    base_url         = string
    installer_sha256 = string
  })
  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.release.installer_sha256))
    error_message = "release.installer_sha256 is 64 hexadecimal digits: sha256sum install.sh."
  }
  validation {
    condition     = can(regex("^(https|file)://[A-Za-z0-9._~:/%-]+$", var.release.base_url)) && can(regex("^[0-9A-Za-z.+~-]+$", var.release.version))
    error_message = "release.base_url is https://HOST/PATH (file:// for a folder of the image), and release.version one such as 0.1.0."
  }
}

variable "gpu_nodes" {
  description = "Names of the machines with engines. Empty: one machine is router, agent and engine."
  type        = set(string)
  default     = []
  validation {
    condition     = alltrue([for name in var.gpu_nodes : can(regex("^[a-z][a-z0-9-]{0,30}$", name)) && !contains(["router", "single"], name)])
    error_message = "gpu_nodes are names of lower-case letters, digits and dashes, and neither router nor single."
  }
}

variable "engine" {
  description = "Settings of [engine] on each machine with engines, as in docs/reference/configuration.md. The default is the simulated engine."
  type        = any
  default     = { kind = "sim", managed = true, model = "sim" }
}

variable "prepare" {
  description = "Shell commands before the installation, on machines with engines: drivers, the engine itself."
  type        = list(string)
  default     = []
}

variable "client_cidrs" {
  description = "Networks that may use the gateway, port 8080."
  type        = list(string)
}

variable "admin_cidrs" {
  description = "Networks that may log in by SSH."
  type        = list(string)
}

variable "subscription_id" {
  description = "Subscription of all machines."
  type        = string
}

variable "location" {
  description = "Location of all machines."
  type        = string
  default     = "westeurope"
}

variable "size" {
  description = "Size of the router's machine; of the single one, gpu_size counts."
  type        = string
  default     = "Standard_D8s_v5"
}

variable "gpu_size" {
  description = "Size of the machines with engines."
  type        = string
  default     = "Standard_NC24ads_A100_v4"
}

variable "ssh_public_key" {
  description = "Public key of the user cognitora (RSA or ed25519)."
  type        = string
}
