/* SPDX-License-Identifier: Apache-2.0 */
/* self: how this process reaches its own gateway, where its requests are like any other ones. */
#pragma once
#include "router/control/control/router.h"

struct router_self {
	char addr[300];
	char name[256];      /* Name to ask for with TLS; empty: none. */
	struct tls_ctx *tls; /* Trusts the gateway's own certificate; NULL: in clear. The caller frees it. */
};
/* Once the workers listen. */
CGN_RC router_self_find(const struct router *r, struct router_self *out, struct cgn_err *err);
/* Once the workers listen: start the thread that asks prompts again, to calibrate cascades, where that is wanted. */
CGN_RC router_calibration_run(struct router *r, struct cgn_err *err);
