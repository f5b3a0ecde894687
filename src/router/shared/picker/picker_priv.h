/* SPDX-License-Identifier: Apache-2.0 */
/* picker, inside. picker.c: the server and its life · stream.c: one request of a proxy, from message to message ·
 * ask.c: what the gateway is asked for it. */
#pragma once
#include "base/core/arena.h"
#include "base/core/list.h"
#include "io/wire/grpc/grpc.h"
#include "policy/answer/extproc/extproc.h"
#include "policy/node/engine/usagescan.h"
#include "policy/route/selection/selection.h"
#include "router/metrics.h"
#include "router/shared/picker/picker.h"

#define PICKER_FIELDS 64 /* Fields of a request that the gateway gets. */
#define PICKER_HEAD   ((size_t)32 * 1024)

#define PICKER_TAG 0x91c4e401U
struct picker {
	uint32_t tag;
	struct picker_cfg cfg;
	struct cgn_loop *loop;
	struct grpc_server *server;
	struct http_client *gateway;
	struct http_call *ready_call; /* NULL: the gateway is not being asked whether it is ready. */
	struct cgn_link streams;
	uint64_t instance, numbers;  /* Make the ids of reservations. */
	struct grpc_budget messages; /* Bytes of messages that are coming. */
	uint64_t bodies;             /* Bytes of all bodies. */
	uint32_t turn;               /* Requests without a body take the workers in turn. */
	struct cgn_timer timer;
	struct cgn_post stop;
};

enum picker_stage {
	PICKER_HEAD_DUE, /* The request's head has not come. */
	PICKER_BODY,     /* The body is coming. */
	PICKER_ASKING,   /* The gateway is asked. */
	PICKER_SENT,     /* The proxy has the endpoint. */
	PICKER_OVER /* Nothing more is expected: the proxy has an answer for its client, or all of the engine's. */
};

#define PICKER_STREAM_TAG 0x91c4e402U
struct picker_stream {
	uint32_t tag;
	struct picker *owner;
	struct cgn_link link;
	struct grpc_call *grpc;
	enum picker_stage stage;
	enum extproc_mode request_mode, answer_mode;
	struct cgn_arena arena; /* Path and fields of the request. */
	struct cgn_str path;
	struct http_field fields[PICKER_FIELDS]; /* For the gateway. */
	size_t n_fields, n_identity;             /* The first |n_identity| of them say whose request it is. */
	struct cgn_buf subset;
	struct cgn_buf body;
	bool bodiless, trailers; /* The request has no body; it has trailers. */
	/* ---- the gateway ---- */
	struct http_call *call; /* The question; NULL: none. */
	int status;
	unsigned retry_after;
	struct cgn_buf reply;
	char id[48];    /* Name of the reservation; empty: none was asked for. */
	bool begun;     /* The gateway was told that the prompt is computed. */
	char first[64]; /* The endpoint that was picked first. */
	/* ---- the engine's answer ---- */
	bool failed;
	struct usagescan told; /* Counts of the answer */
};

/* ---- stream.c ---- */
void picker_on_call(struct grpc_call *c, void *server_user);
/* The gateway has answered, or |why| says why it did not. */
void picker_asked(struct picker_stream *s, const char *why);
/* ---- ask.c ---- */
/* Keep the fields of the request's head that the gateway gets. OVERLOADED, TOO_LARGE: it has too many. */
CGN_RC picker_fields_take(struct picker_stream *s, const struct extproc_message *m, struct cgn_err *err);
/* Ask which endpoint gets the request; picker_asked follows, not inline. */
CGN_RC picker_ask(struct picker_stream *s, struct cgn_err *err);
/* Tell the gateway how the request of the reservation goes on. */
void picker_tell_begun(struct picker_stream *s);
void picker_tell_end(struct picker_stream *s);
/* Ask the gateway whether a node is ready, for the health service. */
void picker_ready_ask(struct picker *p);
