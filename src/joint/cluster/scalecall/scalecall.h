/* SPDX-License-Identifier: Apache-2.0 */
/* scalecall: one attempt to give an order of the autoscaler to a program (no shell; bounded time, the last line of its
 * output is kept) or to a web server (POST of JSON, Idempotency-Key, optional HMAC). One loop, its thread. */
#pragma once
#include "io/os/loop/loop.h"
#include "policy/config/config.h"
#include "policy/fleet/autoscale/order.h"

#define SCALECALL_WHY 360

/* The attempt has ended; |why| is a sentence, borrowed. */
typedef void scalecall_done(void *user, enum autoscale_outcome outcome, const char *why);
struct scalecall;
/* Start an attempt with the settings of router.autoscaler, which are copied as far as they are needed later. |done| comes
 * once, never inline, unless the call is cancelled. Fails when the program or the files of the webhook are not there; |*outcome|
 * says whether another attempt may help. */
CGN_RC scalecall_start(struct cgn_loop *l, const struct config *cfg, const struct autoscale_order *o,
	scalecall_done *done, void *user, struct scalecall **out, enum autoscale_outcome *outcome,
	struct cgn_err *err);
/* End the program or drop the request; |done| is not called. NULL-safe. */
void scalecall_cancel(struct scalecall **take);
