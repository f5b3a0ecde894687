/* SPDX-License-Identifier: Apache-2.0 */
/* client: a router's Control service, called and waited for. */
#pragma once
#include <protobuf-c/protobuf-c.h>

#include "cognitora/v1/control.pb-c.h"
#include "ctl/ctl.h"

struct ctl_client;
/* Flags --router, --ca, --cert, --key; then $CGN_ROUTER; then 127.0.0.1:9090. */
CGN_RC ctl_client_open(const struct ctl_args *a, struct ctl_client **out, struct cgn_err *err);
void ctl_client_close(struct ctl_client **take);
/* Flags --ca, --cert, --key; *out stays NULL without any: in clear. */
struct tls_ctx;
CGN_RC ctl_client_tls(const struct ctl_args *a, struct tls_ctx **out, struct cgn_err *err);
/* One request; |on_answer| gets each answer, packed, while they come (one for unary methods). Returns when
 * the call ended.
 * |timeout| 0: none. */
CGN_RC ctl_client_call(struct ctl_client *c, const char *method, const ProtobufCMessage *request,
	cgn_nsec timeout, void (*on_answer)(void *user, const uint8_t *p, size_t n), void *user,
	struct cgn_err *err);

/* set_policy.c */
void ctl_policy_text(const Cognitora__V1__PolicyStatus *s, struct cgn_buf *out); /* lines */
void ctl_policy_json(const Cognitora__V1__PolicyStatus *s, struct json_out *o);
