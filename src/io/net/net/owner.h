/* SPDX-License-Identifier: Apache-2.0 */
/* owner: who listens on a TCP port of this machine, as /proc tells. */
#pragma once
#include <stddef.h>

enum net_owner { NET_OWNER_UNKNOWN, NET_OWNER_SELF, NET_OWNER_OTHER };
/* |who| gets "pid 4711 (nginx)", "this process", or "" when the process is not visible. UNKNOWN: no socket listens
 * on the port. */
enum net_owner net_port_owner(unsigned port, char *who, size_t cap);
