/* SPDX-License-Identifier: Apache-2.0 */
/* service: the router's gRPC methods and admin routes. Both run on the control loop. */
#pragma once
#include "router/control/control/router.h"

extern const struct grpc_method router_methods[];
extern const size_t router_n_methods;
/* Open the port where machines join, if security.ca_key_file is set. CGN_TLS: the key is not of the CA. */
CGN_RC router_join_open(struct router *r, struct cgn_err *err);
void router_join_close(struct router *r);
extern const struct svc_admin_route router_admin_routes[];
extern const size_t router_n_admin_routes;
