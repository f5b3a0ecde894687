/* SPDX-License-Identifier: Apache-2.0 */
/* client: blocking gRPC calls to a router's service Control or a block store's service Kv. */
#pragma once
#include <protobuf-c/protobuf-c.h>

#include "joint/ctl/line/line.h"

/* CTL_ROUTER: address from --router, then $CGN_ROUTER, then the context, then 127.0.0.1:9090.
 * CTL_STORE: address from --uds or --addr, then $CGN_KV, then the context, then the Unix socket of the node's
 * store. TLS for both from --ca, --crl, --cert and --key, then the context (ctl/context). */
enum ctl_server { CTL_ROUTER, CTL_STORE, CTL_JOIN /* ctl_client_join only */ };
struct ctl_client;
CGN_RC ctl_client_open(const struct ctl_args *a, enum ctl_server server, struct ctl_client **out,
	struct cgn_err *err);
void ctl_client_close(struct ctl_client **take);

struct ctl_call {
	const char *method;
	const ProtobufCMessageDescriptor *answer; /* Type of the answers; NULL: answers are ignored. */
	const void *request;                      /* Any generated struct; NULL: |next| gives the requests. */
	/* Pack the next request into |out|; false when there are no more. */
	bool (*next)(void *user, struct cgn_buf *out);
	/* Address of a pointer to the generated struct, which takes the first answer; the caller frees it with
	 * pb_free. NULL: |on_answer| gets each answer. */
	void *first;
	void (*on_answer)(void *user, const void *message); /* |message| is borrowed. */
	/* Asked after each answer: true ends the call successfully. May be NULL. */
	bool (*enough)(void *user);
	void *user;
	cgn_nsec timeout; /* 0: none. */
};
/* Run the call to its end. UNAVAILABLE and DEADLINE name the server's address and the flag to change it;
 * BAD_GATEWAY: an answer is not of the expected type; other errors are the server's. */
CGN_RC ctl_client_run(struct ctl_client *c, const struct ctl_call *call, struct cgn_err *err);
/* Open a client, run |call|, and close the client. With |first|: BAD_GATEWAY when there was no answer. */
CGN_RC ctl_client_call(const struct ctl_args *a, enum ctl_server server, const struct ctl_call *call,
	struct cgn_err *err);
/* CGN_INVALID: there is a list of revoked certificates and no CA. */
struct tls_cfg;
CGN_RC ctl_crl_check(const struct tls_cfg *files, struct cgn_err *err);
/* Ask the router at |addr|, on the port where machines join, over TLS by |tls|. */
CGN_RC ctl_client_join(const char *addr, const struct tls_cfg *tls, const struct ctl_call *call,
	struct cgn_err *err);
/* Return the address that CTL_ROUTER calls go to. */
CGN_RC ctl_router_address(const struct ctl_args *a, char out[300], struct cgn_err *err);
/* Value of --timeout, or |fallback| when the flag is not given. */
CGN_RC ctl_timeout(const struct ctl_args *a, cgn_nsec fallback, cgn_nsec *out, struct cgn_err *err);
