/* SPDX-License-Identifier: Apache-2.0 */
/* service: the router's gRPC methods and admin routes. Both run on the control loop. */
#pragma once
#include "router/control/router.h"

extern const struct grpc_method router_methods[];
extern const size_t router_n_methods;
extern const struct svc_admin_route router_admin_routes[];
extern const size_t router_n_admin_routes;
