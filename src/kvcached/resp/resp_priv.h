/* SPDX-License-Identifier: Apache-2.0 */
/* resp: Redis clients at the store. One port per worker (TCP by SO_REUSEPORT, the Unix socket shared), and
 * what a connection is between its files: resp.c listens and keeps bounds, resp_conn.c reads commands,
 * resp_out.c answers in order, resp_*.c are the commands.
 *
 * Memory, beside the store's budget. Per connection: RESP_TEXT_FREE of text of a command that is not whole,
 * an answer's text up to 8 x NET_QUEUE_MARK, RESP_REPLIES answers that wait for a slower tier. Over a
 * worker's connections together: RESP_TEXT_MOST of such text (who needs more is cut). Values are never here:
 * one that arrives lies in the store's pages, one that is sent is lent to the socket from there, and both
 * count as held (value_hold) so long: of one connection at most RESP_AHEAD and a value. Beyond that bound who
 * asks waits, those first who took what they held before; and who holds something and takes or brings less
 * than RESP_PACE within RESP_PRESSED is cut for them. So somebody who takes what he asks for waits little
 * more than RESP_PRESSED, however many there are who do not. Who takes or brings nothing for RESP_STALL, or
 * does not get a command together within RESP_SLOW, is cut. */
#pragma once
#include "base/core/buf.h"
#include "base/core/list.h"
#include "io/net/net.h"
#include "kvcached/daemon/kvcached.h"
#include "policy/respcmd/respcmd.h"

#define RESP_PORT_TAG  0x52535030U
#define RESP_CONN_TAG  0x52535043U
#define RESP_TEXT_FREE ((size_t)4096)
#define RESP_TEXT_MOST ((size_t)64 << 20)
#define RESP_REPLIES   64
#define RESP_COPY_MOST ((size_t)4096) /* shorter values are copied: cheaper than a loan */
#define RESP_STALL     (30 * CGN_SEC)
#define RESP_PRESSED   CGN_SEC
#define RESP_PACE      ((uint64_t)64 << 10)
/* of values that are sent: of one who holds as much no further one is read or sent */
#define RESP_AHEAD   ((uint64_t)4 << 20)
#define RESP_REMOTE  (RESP_AHEAD / 4) /* a value of a peer counts as this until it is here */
#define RESP_VERSION "7.0.0"          /* of Redis, whose commands we answer like: clients look at it */
/* for a command to be whole, and a second for each MiB of its values */
#define RESP_SLOW     (60 * CGN_SEC)
#define RESP_MAX_TAGS 64 /* bytes of a client's name and library */

/* What is held: values that are sent, and values that arrive. Neither may take more than three quarters of
 * what can be held, so that slow readers do not keep writers out, nor the other way round. */
enum resp_hold { RESP_SENDS, RESP_ARRIVES, RESP_HOLDS };

/* Who waits for what others hold, in this order on all workers: those who took what they held before, those
 * of whom nothing is known. */
enum resp_rank { RESP_PROVEN, RESP_NEW, RESP_RANKS };

/* What all workers have together. */
struct resp_shared {
	_Atomic unsigned refs, conns, waiting;       /* waiting: for what others hold */
	_Atomic unsigned proven_waiting[RESP_HOLDS]; /* of them, RESP_PROVEN, for each */
	_Atomic uint64_t next_id, commands, held[RESP_HOLDS];
	uint8_t password[32]; /* its SHA-256 */
	bool has_password;
};

/* What is to be written to one connection, put together: text by copy, values by loan. */
struct resp_gather {
	struct resp_conn *conn; /* NULL: nothing is there */
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
	struct cgn_link conns, waiting[RESP_RANKS]; /* waiting: until less is held */
	size_t n_conns, text_bytes;
	struct cgn_timer tick;
	struct cgn_hook wake;
	bool draining, closed, cutting;
	struct cgn_grave grave;
	struct resp_gather out;
};

/* An answer that cannot go yet. */
enum resp_reply_kind { RESP_REPLY_TEXT, RESP_REPLY_BLOCK, RESP_REPLY_READ };
struct resp_reply {
	struct cgn_link link;
	struct resp_conn *conn;
	enum resp_reply_kind kind;
	struct cgn_buf text;
	struct kvstore_block *block;
	uint64_t off, end; /* of the block, what is still to be sent */
	uint64_t held;     /* bytes by value_hold */
	uint64_t reads;    /* its share of conn->reading */
	struct value_read *read;
	int64_t first, last; /* what is asked for of it */
	bool nil_is_empty, begun /* its head was sent */;
};

struct resp_conn {
	uint32_t tag;
	struct resp_port *port;
	struct net_conn *net;
	struct cgn_link link, wait;
	struct cgn_grave grave;
	uint64_t id;
	bool resp3, authed, closing, ended /* by the peer */,
		pending /* a whole command waits for its turn */, running;
	bool proven; /* took, or brought, what it held before */
	enum resp_rank wait_rank;
	enum resp_hold wait_what;
	cgn_nsec opened, heard, begun /* the command that comes */;
	/* when it last took or brought something, or had nothing to; and RESP_PACE of it */
	cgn_nsec moved, paced;
	uint64_t pace; /* taken or brought since |paced| */
	size_t last_queued;
	char name[RESP_MAX_TAGS], lib_name[RESP_MAX_TAGS], lib_ver[RESP_MAX_TAGS];
	/* in */
	struct cgn_buf in; /* of a command that is not whole, or waits */
	struct respcmd cmd;
	struct cgn_str text;                    /* of the command that is being done */
	size_t step;                            /* how far it got */
	struct kvstore_writer **apart, *writer; /* values that came apart; the one that comes */
	uint32_t n_apart, cap_apart;
	uint64_t value_left; /* of the value that comes; without a writer it is skipped */
	uint64_t arriving;   /* bytes of its values that came apart, as resp_hold counted them */
	uint64_t announced;  /* all of them, those that are skipped too */
	char fault[128];     /* why the command fails although it is read to its end */
	/* the old value, for SET ... GET and GETDEL */
	struct value_read *fetch;
	struct kvstore_block *fetched;
	bool fetch_done;
	/* out */
	struct cgn_link replies;
	size_t n_replies, reply_text;
	uint64_t reading; /* bytes of values in the replies: kept in RAM, or asked of a slower tier */
};

/* ---- resp.c ---- */
void resp_port_freed(struct resp_port *p); /* less is held: who waits may go on */
/* value_hold of at most what can be held at all: *held is what to let go. False: it has to wait, and will be
 * resumed. */
bool resp_hold(struct resp_conn *c, enum resp_hold what, uint64_t n, uint64_t *held);
/* the same for who can't wait */
bool resp_hold_now(struct resp_conn *c, enum resp_hold what, uint64_t n, uint64_t *held);
void resp_unhold(struct resp_port *p, enum resp_hold what, uint64_t n);
void resp_port_done_waiting(struct resp_conn *c);
void resp_conn_left(struct resp_conn *c);

/* ---- resp_conn.c ---- */
extern const struct net_conn_ops resp_conn_ops;
struct resp_conn *resp_conn_new(struct resp_port *p, struct net_conn *net);
void resp_conn_resume(struct resp_conn *c);     /* something that it waited for has come */
bool resp_conn_idle(const struct resp_conn *c); /* nothing of a command is here */
/* once a second: is it stalled, or idle for too long */
void resp_conn_check(struct resp_conn *c, cgn_nsec now);
void resp_conn_close(struct resp_conn *c); /* once what it asked is answered */

/* ---- resp_out.c ---- */
enum resp_did { RESP_DONE, RESP_LATER /* nothing changed; call again when the connection can take more */ };
bool resp_full(struct resp_conn *c); /* it has enough to take for now: say RESP_LATER */
void resp_put(struct resp_conn *c, const void *p, size_t n);
void resp_putz(struct resp_conn *c, const char *z);
void resp_fmt(struct resp_conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void resp_ok(struct resp_conn *c);
void resp_error(struct resp_conn *c, const char *what); /* "ERR ..." */
void resp_int(struct resp_conn *c, int64_t v);
void resp_bulk(struct resp_conn *c, struct cgn_str s);
void resp_nil(struct resp_conn *c);
void resp_array(struct resp_conn *c, size_t n);
void resp_map(struct resp_conn *c, size_t n); /* in RESP2 an array of twice as many */
/* Bytes |first| to |last| (as GETRANGE) of a block. Takes it. It may have to wait, and then what follows
 * waits too. */
void resp_block(struct resp_conn *c, struct kvstore_block **take, int64_t first, int64_t last);
/* The same of whatever tier has it; it comes when it comes, at its place. */
enum resp_did resp_value(struct resp_conn *c, const struct block_key *k, int64_t first, int64_t last,
	bool nil_is_empty);
void resp_flush(struct resp_conn *c);
bool resp_pump(struct resp_conn *c); /* true: nothing waits any more */
void resp_replies_drop(struct resp_conn *c);

/* ---- commands ---- */
typedef enum resp_did resp_command(struct resp_conn *c);
enum resp_did resp_run(struct resp_conn *c);
struct cgn_str resp_arg(const struct resp_conn *c, size_t i);
bool resp_arg_is(const struct resp_conn *c, size_t i, const char *word);
/* The key in argument |i|; false: it is too long, which was answered. |name|: what has to be kept with it. */
bool resp_key(struct resp_conn *c, size_t i, struct block_key *k, struct cgn_str *name);
bool resp_number(struct resp_conn *c, size_t i, int64_t *out); /* false: it is none, which was answered */

/* resp_write.c */
/* cmd.value bytes follow, of the last argument. False: there is no room for them yet. */
bool resp_value_begins(struct resp_conn *c);
void resp_values_drop(struct resp_conn *c);
resp_command resp_set, resp_mset, resp_setnx, resp_setex, resp_getset;
/* resp_read.c */
resp_command resp_get, resp_mget, resp_getrange, resp_getdel;
/* The value of the key in argument 1 as it is now: RESP_DONE with c->fetched (NULL: none). */
enum resp_did resp_fetch(struct resp_conn *c, const struct block_key *k);
/* resp_keys.c */
resp_command resp_exists, resp_del, resp_strlen, resp_expire, resp_ttl, resp_persist, resp_type, resp_scan;
/* resp_client.c */
resp_command resp_ping, resp_echo, resp_hello, resp_auth, resp_client, resp_select, resp_time, resp_quit,
	resp_reset;
/* resp_info.c */
resp_command resp_dbsize, resp_info, resp_config, resp_command_info;
