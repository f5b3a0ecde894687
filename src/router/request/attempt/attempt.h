/* SPDX-License-Identifier: Apache-2.0 */
/* attempt: one leg's call to one node: the booking of its load, the head of its answer, and how far it came.
 * Belongs to its owner and its worker's loop. */
#pragma once
#include "base/coding/coding.h"
#include "policy/answer/opening/opening.h"
#include "policy/node/breaker/breaker.h"
#include "router/request/attempt/call.h"

/* A head of an answer that is longer is the node's fault. */
#define GW_HEAD_MAX ((size_t)64 * 1024)
/* Bytes that an arena for one head needs: the message, and its fields twice. */
#define GW_HEAD_ARENA (GW_HEAD_MAX + 1024 + 2 * PROTO_MAX_HEADERS * sizeof(struct proto_header))

/* Callbacks of an attempt, on the worker's loop. */
struct gw_attempt_ops {
	/* The head came, the answer turned out to be unusable (call.why), or the call has ended. The owner may
	 * end the attempt. */
	void (*on_event)(void *user);
	/* Bytes of the answer, not empty, after the head. Borrowed. */
	void (*on_data)(void *user, struct cgn_str data);
};

/* The state of an attempt straight at an engine; direct.h */
struct gw_direct {
	const struct proto_generate *sent; /* to send it again, in the attempt's arena; NULL: none */
	struct enginecall_gather gather;   /* bytes of this turn */
	uint32_t tokens;                   /* prompt tokens that are counted as not computed */
	bool counted, begun, whole;        /* in node_stats */
	bool retried;                      /* a stale connection was replaced */
};

/* The first bytes of the answer; opening.h */
struct gw_opening {
	enum opening_route route;
	uint32_t answers; /* as opening_answers returns */
	bool page;        /* an error of the engine that is a page of HTML, where the route has JSON */
	struct opening reader;
	struct coding *decoder; /* reads an encoded answer; NULL: none, or not any more */
	size_t decoded;
	struct cgn_str bytes; /* all bytes of the answer, while none was relayed; p NULL: none are at hand */
	struct cgn_buf held;  /* holds |bytes|, unless they are borrowed */
	cgn_nsec since;       /* instant of the first byte */
};

struct gw_peer; /* router/shared/peers */
struct gw_peer_model;

struct gw_attempt {
	struct gw_call call;
	struct gw_direct direct;
	uint32_t turn;        /* attempts that this object was before: tells them apart in callbacks */
	bool by_engine;       /* straight from the engine, not by the agent */
	struct gw_peer *peer; /* the other end, of another cluster; NULL: it is a node. peercall.h */
	struct gw_peer_model *peer_model; /* row of the model at |peer| */
	bool leaves;                      /* counted as open at |peer| */
	struct gw_worker *w;              /* NULL: nothing was started yet */
	struct cgn_arena *arena;          /* lives longer than the attempt; the owner's */
	struct cgn_arena *head;           /* for the answer's head; the owner's */
	const struct gw_attempt_ops *ops;
	void *user;
	struct chooser_ticket ticket;
	struct chooser_energy used; /* Energy of the attempts before this one. */ /* the node's booking */
	struct metric_cell *predicted, *actual; /* cached tokens of the node; NULL: not known */
	enum breaker_gate gate;                 /* BREAKER_PROBE: this attempt is the breaker's probe */
	bool judged;                            /* the node's breaker has the verdict on this attempt */
	bool once;                              /* the engine may be asked once at most */
	bool begun_unseen; /* the engine hung up, and may have begun: only known of an attempt that is |once| */
	bool accepted;     /* the answer is relayed even though it is an error */
	bool head_seen;
	bool events; /* the answer is an event stream */
	int status;
	const struct proto_header *headers; /* fields of the answer, in |head| */
	size_t n_headers;
	struct gw_opening opening;
	cgn_nsec sent_at;
	cgn_nsec begun_at;  /* instant of the first byte; 0: none yet */
	cgn_nsec last_byte; /* instant of the last bytes, or of a slow client's return to reading */
	uint32_t pieces;    /* messages with bytes that were relayed */
};

struct gw_attempt_cfg {
	struct gw_worker *w;
	struct cgn_arena *arena, *head; /* live longer than the attempt; |head| is empty */
	const struct gw_attempt_ops *ops;
	void *user;
	struct chooser_ticket ticket; /* taken */
	enum breaker_gate gate;       /* result of gw_breaker_claim */
	bool once;                    /* another try would repeat work or a change of state */
	enum opening_route route;     /* kind of bytes that the answer may have */
	uint32_t answers;             /* as opening_answers returns */
};
/* Send |g| to |node|. A call that cannot be started is a closed attempt with a reason in call.why. |a| must
 * have ended, or be zero. */
void gw_attempt_start(struct gw_attempt *a, const struct gw_attempt_cfg *cfg, const struct view_node *node,
	const struct proto_generate *g);
/* Make |a| a fresh attempt; its owner, booking and the energy of those before it are set. */
void gw_attempt_begin(struct gw_attempt *a, const struct gw_attempt_cfg *cfg);
/* Send |g| to the node's agent, on the attempt's link. */
void gw_attempt_by_agent(struct gw_attempt *a, const struct proto_generate *g);
/* Take the head of the answer; |headers| are in |a->head|. Calls on_event. */
void gw_attempt_head(struct gw_attempt *a, int status, const struct proto_header *headers, size_t n);
/* Declare the answer unusable. Calls on_event. */
void gw_attempt_refuse(struct gw_attempt *a, enum cgn_code code);
/* Return the joules that this attempt and those before it have used, by phase. */
struct chooser_energy gw_attempt_joules(const struct gw_attempt *a);
/* Bytes of the answer came: its node is alive. */
void gw_attempt_beat(struct gw_attempt *a);
/* Give the booking back. Returns true if there was one: then there is room on the node. */
bool gw_attempt_release(struct gw_attempt *a);
/* End the attempt: cancel an open call, give the booking and the link back. An attempt without a verdict says
 * nothing of its node. The known facts of the answer stay. Returns what gw_attempt_release returns. Safe when
 * nothing was started. */
bool gw_attempt_end(struct gw_attempt *a);

/* Return true if the engine took the request and hung up before it answered. */
bool gw_attempt_died(const struct gw_attempt *a);
/* Return how the attempt failed, which has no answer; BREAKER_FAILURES: the request is at fault. */
enum breaker_failure gw_attempt_failure(const struct gw_attempt *a);
/* Return the node's failure that an answer's status and its first bytes show; BREAKER_FAILURES: nothing. An
 * agent whose engine is not loaded refuses as a node that is full. */
enum breaker_failure gw_attempt_status_failure(const struct gw_attempt *a);
/* Return true if the answer is an error, by its status or by what it says behind a 200: it has no tokens. */
bool gw_attempt_is_error(const struct gw_attempt *a);
/* Return when the call must be looked at again, from now, to see in time that its node was declared stalled. */
cgn_nsec gw_attempt_poll(const struct gw_worker *w);
