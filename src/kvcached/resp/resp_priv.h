/* SPDX-License-Identifier: Apache-2.0 */
/* resp: the port for Redis clients. One port per worker: TCP by SO_REUSEPORT, the Unix socket shared. port.c
 * listens and ticks, conn.c reads and runs commands, hold.c limits what clients hold, out.c replies in order;
 * the commands (command_priv.h) are in the other files.
 *
 * Memory beside the store's budget. Per connection: RESP_TEXT_FREE of text of an incomplete command, reply
 * text up to 8 x NET_QUEUE_MARK, and RESP_REPLIES replies that wait for a slower tier. All connections of a
 * worker together: RESP_TEXT_MOST of such text; a connection that needs more is cut.
 *
 * Values stay in the store's pages, on arrival and while they are sent. Both count as held (value_hold): at
 * most RESP_AHEAD and one value per connection. Beyond the limit connections wait; those that took their
 * memory earlier come first. While others wait, a connection that holds something and moves less than
 * RESP_PACE within RESP_PRESSED is cut. So a client that takes what it requests waits little longer than
 * RESP_PRESSED, however many clients stall. A connection is also cut when nothing moves for RESP_STALL, or
 * when a command is not complete within RESP_SLOW. */
#pragma once
#include "base/core/buf.h"
#include "base/core/list.h"
#include "io/net/net/net.h"
#include "kvcached/value/value.h"
#include "policy/kv/respcmd/respcmd.h"

#define RESP_PORT_TAG  0x52535030U
#define RESP_CONN_TAG  0x52535043U
#define RESP_TEXT_FREE ((size_t)4096)
#define RESP_TEXT_MOST ((size_t)64 << 20)
#define RESP_REPLIES   64
#define RESP_COPY_MOST ((size_t)4096) /* shorter values are copied, which costs less than a loan */
#define RESP_STALL     (30 * CGN_SEC)
#define RESP_PRESSED   CGN_SEC
#define RESP_PACE      ((uint64_t)64 << 10)
/* A connection that holds so many bytes of sent values gets no further value. */
#define RESP_AHEAD   ((uint64_t)4 << 20)
#define RESP_REMOTE  (RESP_AHEAD / 4) /* counted for a value of a peer until it arrives */
#define RESP_VERSION "7.0.0"          /* the Redis version that clients see */
/* Timeout of a command, plus a second for each MiB of its values. */
#define RESP_SLOW       (60 * CGN_SEC)
#define RESP_SHORT_TICK (20 * CGN_MSEC) /* tick while a connection waits for room, and while draining */
#define RESP_MAX_TAGS   64              /* bytes of a client's name or library */

/* The kinds of held memory: values that are sent, and values that arrive. Each may take three quarters of the limit, so
 * slow readers do not lock out writers, nor writers readers. */
enum resp_hold { RESP_SENDS, RESP_ARRIVES, RESP_HOLDS };

/* The order of the connections that wait for room, on all workers: proven ones first. */
enum resp_rank { RESP_PROVEN, RESP_NEW, RESP_RANKS };

/* State of all workers together. */
struct resp_shared {
	_Atomic unsigned refs, conns, waiting;       /* waiting: connections that wait for room */
	_Atomic unsigned proven_waiting[RESP_HOLDS]; /* RESP_PROVEN ones among them */
	_Atomic uint64_t next_id, commands, held[RESP_HOLDS];
	_Atomic uint64_t http_refused; /* connections on which HTTP was spoken */
	uint8_t password[32];          /* SHA-256 of the password */
	bool has_password;
};

/* Output that is gathered for one connection: text by copy, values by loan. */
struct resp_gather {
	struct resp_conn *conn; /* NULL: the gather is empty */
	size_t n_text, n_parts, bytes;
	struct net_part parts[NET_MAX_PARTS];
	char text[16384];
};

struct resp_port {
	uint32_t tag;
	struct kvcached_worker *worker;
	struct cgn_loop *loop;
	struct kvstore *store;
	struct resp_shared *shared;
	struct net_listener *tcp, *local;
	struct cgn_link conns, waiting[RESP_RANKS]; /* waiting: connections that wait for room */
	size_t n_conns, text_bytes;
	struct cgn_timer tick;
	struct cgn_hook wake;
	bool draining, closed, cutting;
	struct cgn_grave grave;
	struct resp_gather out;
};

/* A reply that cannot be sent yet. */
enum resp_reply_kind { RESP_REPLY_TEXT, RESP_REPLY_BLOCK, RESP_REPLY_READ };
struct resp_reply {
	struct cgn_link link;
	struct resp_conn *conn;
	enum resp_reply_kind kind;
	struct cgn_buf text;
	struct kvstore_block *block;
	uint64_t off, end; /* the part of the block that is not sent yet */
	uint64_t held;     /* bytes counted by resp_hold */
	uint64_t reads;    /* the part of conn->reading */
	struct value_read *read;
	int64_t first, last; /* the requested range */
	bool nil_is_empty, begun /* the head was sent */;
};

/* How fast a client takes or brings what it holds (conn.c). */
struct resp_pace {
	cgn_nsec moved;     /* when the client last took or brought bytes, or held nothing */
	cgn_nsec since;     /* when it last completed RESP_PACE bytes */
	uint64_t bytes;     /* taken or brought after |since| */
	size_t last_queued; /* bytes queued at the last check */
};

/* Values that arrive apart from the text of their command (write.c). */
struct resp_values {
	struct kvstore_writer **list; /* a writer per value of the command; NULL: skipped */
	uint32_t n, cap;
	struct kvstore_writer *writer; /* writer of the value that arrives now; NULL: it is skipped */
	uint64_t left;                 /* bytes of that value that did not arrive yet */
	uint64_t held;                 /* bytes that resp_hold counts for these values */
	uint64_t announced;            /* bytes of all values of the command, skipped ones included */
};

struct resp_conn {
	uint32_t tag;
	struct resp_port *port;
	struct net_conn *net;
	void (*resume)(struct resp_conn *c); /* continues after a wait: resp_conn_resume */
	struct cgn_link link, wait;
	struct cgn_grave grave;
	uint64_t id;
	bool resp3, authed;
	uint32_t may; /* bit i: the client may do the identity_action i; asked once */
	bool closing; /* closes when the replies are sent */
	bool ended;   /* the client sent its end */
	bool pending; /* a whole command waits for its turn */
	bool running; /* commands are being run */
	bool proven;  /* the client took or brought what it held before */
	enum resp_rank wait_rank;
	enum resp_hold wait_what;
	cgn_nsec opened, heard;
	cgn_nsec begun; /* start of the command that arrives */
	struct resp_pace pace;
	struct resp_client {
		char name[RESP_MAX_TAGS], lib_name[RESP_MAX_TAGS], lib_ver[RESP_MAX_TAGS];
	} client; /* the client's own description (client.c) */
	/* the command */
	struct cgn_buf in; /* text of a command that is not whole, or waits */
	struct respcmd cmd;
	struct cgn_str text; /* text of the command that runs */
	size_t step;         /* progress of a command that runs in steps */
	struct resp_values values;
	char fault[128]; /* the error reply of a command that is read to its end although it fails */
	/* reading the old value to RAM, for SET ... GET and GETDEL (read.c) */
	struct value_read *fetch;
	struct kvstore_block *fetched; /* keeps the value in RAM until the command ends */
	/* replies (out.c) */
	struct cgn_link replies;
	size_t n_replies, reply_text;
	uint64_t reading; /* bytes of values in the replies: held in RAM, or requested from a slower tier */
};

/* ---- port.c ---- */
void resp_conn_left(struct resp_conn *c);

/* ---- hold.c ---- */
/* Count |n| bytes as held, or as many as can be held at all; |*held|: the bytes to give to resp_unhold. Returns
 * false when others hold too much: then |c| waits, and is resumed. */
bool resp_hold(struct resp_conn *c, enum resp_hold what, uint64_t n, uint64_t *held);
/* The same without waiting. */
bool resp_hold_now(struct resp_conn *c, enum resp_hold what, uint64_t n, uint64_t *held);
void resp_unhold(struct resp_port *p, enum resp_hold what, uint64_t n);
/* Less is held: resume connections that wait, at the end of the turn. */
void resp_hold_freed(struct resp_port *p);
bool resp_hold_any_waits(const struct resp_port *p);
void resp_hold_wait_end(struct resp_conn *c);

/* ---- conn.c ---- */
extern const struct net_conn_ops resp_conn_ops;
struct resp_conn *resp_conn_new(struct resp_port *p, struct net_conn *net);
/* Continue after a wait: send replies, then run commands. */
void resp_conn_resume(struct resp_conn *c);
/* Cut the connection when it is stalled, slow, or idle for too long. Once a second. */
void resp_conn_check(struct resp_conn *c, cgn_nsec now);

/* ---- out.c ---- */
void resp_close(struct resp_conn *c); /* closes when the replies are sent */
enum resp_did { RESP_DONE, RESP_LATER /* nothing changed; call again when the connection can take more */ };
bool resp_full(struct resp_conn *c); /* the connection has enough output; return RESP_LATER */
void resp_put(struct resp_conn *c, const void *p, size_t n);
void resp_putz(struct resp_conn *c, const char *z);
void resp_fmt(struct resp_conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void resp_ok(struct resp_conn *c);
void resp_error(struct resp_conn *c, const char *what); /* begins with "ERR" or another code */
void resp_int(struct resp_conn *c, int64_t v);
void resp_bulk(struct resp_conn *c, struct cgn_str s);
void resp_nil(struct resp_conn *c);
void resp_array(struct resp_conn *c, size_t n);
void resp_map(struct resp_conn *c, size_t n); /* in RESP2 an array of 2 |n| */
/* Reply with bytes |first| to |last| of a block, as GETRANGE counts them. Takes |*take|. When the reply
 * waits, later replies wait too. */
void resp_block(struct resp_conn *c, struct kvstore_block **take, int64_t first, int64_t last);
/* The same for the value of |k| in any tier or peer; the reply keeps its place in the order. */
enum resp_did resp_value(struct resp_conn *c, const struct block_key *k, int64_t first, int64_t last,
	bool nil_is_empty);
void resp_flush(struct resp_conn *c);
bool resp_pump(struct resp_conn *c); /* returns true when no reply waits any more */
void resp_replies_drop(struct resp_conn *c);
