terraform {
  required_version = ">= 1.6"
  required_providers {
    azurerm = { source = "hashicorp/azurerm", version = "~> 4.0" }
  }
}

provider "azurerm" {
  subscription_id = var.subscription_id
  features {}
}

resource "azurerm_resource_group" "cluster" {
  name     = var.cluster_name
  location = var.location
}

resource "azurerm_virtual_network" "cluster" {
  name                = var.cluster_name
  resource_group_name = azurerm_resource_group.cluster.name
  location            = azurerm_resource_group.cluster.location
  address_space       = ["10.80.0.0/16"]
}

resource "azurerm_subnet" "cluster" {
  name                 = "machines"
  resource_group_name  = azurerm_resource_group.cluster.name
  virtual_network_name = azurerm_virtual_network.cluster.name
  address_prefixes     = ["10.80.0.0/24"]
}

# Machines of the virtual network reach each other by Azure's default rules.
resource "azurerm_network_security_group" "machine" {
  for_each            = local.roles
  name                = "${var.cluster_name}-${each.key}"
  resource_group_name = azurerm_resource_group.cluster.name
  location            = azurerm_resource_group.cluster.location
}

resource "azurerm_network_security_rule" "admin" {
  for_each                    = local.roles
  name                        = "ssh"
  resource_group_name         = azurerm_resource_group.cluster.name
  network_security_group_name = azurerm_network_security_group.machine[each.key].name
  priority                    = 100
  direction                   = "Inbound"
  access                      = "Allow"
  protocol                    = "Tcp"
  source_port_range           = "*"
  destination_port_range      = "22"
  source_address_prefixes     = var.admin_cidrs
  destination_address_prefix  = "*"
}

resource "azurerm_network_security_rule" "gateway" {
  name                        = "gateway"
  resource_group_name         = azurerm_resource_group.cluster.name
  network_security_group_name = azurerm_network_security_group.machine[local.head].name
  priority                    = 110
  direction                   = "Inbound"
  access                      = "Allow"
  protocol                    = "Tcp"
  source_port_range           = "*"
  destination_port_range      = "8080"
  source_address_prefixes     = var.client_cidrs
  destination_address_prefix  = "*"
}

resource "azurerm_public_ip" "machine" {
  for_each            = local.roles
  name                = "${var.cluster_name}-${each.key}"
  resource_group_name = azurerm_resource_group.cluster.name
  location            = azurerm_resource_group.cluster.location
  allocation_method   = "Static"
}

resource "azurerm_network_interface" "machine" {
  for_each            = local.roles
  name                = "${var.cluster_name}-${each.key}"
  resource_group_name = azurerm_resource_group.cluster.name
  location            = azurerm_resource_group.cluster.location
  ip_configuration {
    name                          = "main"
    subnet_id                     = azurerm_subnet.cluster.id
    private_ip_address_allocation = each.value.role == "node" ? "Dynamic" : "Static"
    private_ip_address            = each.value.role == "node" ? null : "10.80.0.10"
    public_ip_address_id          = azurerm_public_ip.machine[each.key].id
  }
}

resource "azurerm_network_interface_security_group_association" "machine" {
  for_each                  = local.roles
  network_interface_id      = azurerm_network_interface.machine[each.key].id
  network_security_group_id = azurerm_network_security_group.machine[each.key].id
}

resource "azurerm_linux_virtual_machine" "machine" {
  for_each              = local.roles
  name                  = "${var.cluster_name}-${each.key}"
  resource_group_name   = azurerm_resource_group.cluster.name
  location              = azurerm_resource_group.cluster.location
  size                  = each.value.engine ? var.gpu_size : var.size
  admin_username        = "cognitora"
  network_interface_ids = [azurerm_network_interface.machine[each.key].id]
  custom_data           = base64encode(local.user_data[each.key])
  tags                  = { cluster = var.cluster_name, role = each.value.role }
  admin_ssh_key {
    username   = "cognitora"
    public_key = var.ssh_public_key
  }
  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "Premium_LRS"
    disk_size_gb         = each.value.engine ? 200 : 32
  }
  source_image_reference {
    publisher = "Debian"
    offer     = "debian-12"
    sku       = "12-gen2"
    version   = "latest"
  }
  # A release or setting of a later plan is for machines that are new: this one has its CA, keys and state, and is upgraded in place.
  lifecycle {
    ignore_changes = [admin_ssh_key, custom_data, source_image_reference]
  }
}
