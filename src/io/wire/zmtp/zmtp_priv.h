/* SPDX-License-Identifier: Apache-2.0 */
/* zmtp, inside: the framing, which handles bytes only, and the peers of a socket. */
#pragma once
#include "base/core/buf.h"
#include "base/core/list.h"
#include "io/net/net/net.h"
#include "io/os/loop/backoff.h"
#include "io/wire/zmtp/zmtp.h"

/* ---- wire.c ---- */
#define ZMTP_GREETING_BYTES 64
#define ZMTP_MAX_COMMAND    4096

enum zmtp_got { ZMTP_GOT_NOTHING, ZMTP_GOT_GREETING, ZMTP_GOT_COMMAND, ZMTP_GOT_MESSAGE, ZMTP_GOT_FAULT };
struct zmtp_wire {
	uint8_t head[ZMTP_GREETING_BYTES]; /* Head of the greeting or of the incoming frame. */
	size_t head_n;
	bool greeted, in_body;
	uint8_t major, minor; /* The peer's version, once the greeting came. */
	uint8_t flags;
	size_t left; /* Bytes of the body still to come. */
	size_t max_message;
	struct cgn_buf body; /* The parts so far, one behind the other, then a command. */
	size_t ends[ZMTP_MAX_PARTS], n_ends;
	bool handed_out; /* The parts of a whole message were handed out. */
	struct cgn_str command;
	struct cgn_str parts[ZMTP_MAX_PARTS];
	size_t n_parts;
	const char *fault; /* First fault; sticky. */
};
void zmtp_wire_init(struct zmtp_wire *w, size_t max_message);
void zmtp_wire_fini(struct zmtp_wire *w);
/* Take bytes from the front of |*rest| until a message or command is complete, or nothing is left
 * (ZMTP_GOT_NOTHING). |command| (which begins with its name's length) and |parts| are valid until the next
 * call. */
enum zmtp_got zmtp_wire_next(struct zmtp_wire *w, struct cgn_str *rest);

void zmtp_put_greeting(struct cgn_buf *b);
void zmtp_put_message(struct cgn_buf *b, const struct cgn_str *parts, size_t n);
void zmtp_put_command(struct cgn_buf *b, const char *name, struct cgn_str data);
/* Append a property of a READY command. */
void zmtp_put_property(struct cgn_buf *b, const char *name, struct cgn_str value);
/* Upper bound of the message's size on the wire. */
size_t zmtp_message_bytes(const struct cgn_str *parts, size_t n);
/* Is |command| a |name|? If so, |*data| is what follows the name. */
bool zmtp_command_is(struct cgn_str command, const char *name, struct cgn_str *data);
/* Return the value of a READY's property; p == NULL when it is missing or the list is malformed. */
struct cgn_str zmtp_property(struct cgn_str ready, const char *name);

/* ---- peer.c ---- */
#define ZMTP_PEER_TAG 0x2a7900feU

struct zmtp_topic {
	struct cgn_link link;
	uint8_t n;
	char bytes[ZMTP_MAX_TOPIC];
};

struct zmtp_peer {
	uint32_t tag;
	struct cgn_link link; /* Member of s->peers. */
	struct zmtp *s;
	struct net_conn *conn;
	uint64_t id;
	struct zmtp_wire in;
	struct cgn_buf wait; /* Bytes to send, from wait_at on, once the connection takes them. */
	size_t wait_at;
	struct cgn_link topics; /* PUB: topics that the peer subscribed to. */
	size_t n_topics;
	struct cgn_timer pulse;
	cgn_nsec heard, ready_at;
	unsigned pings;    /* PINGs sent since the peer's last sign of life. */
	bool ready, ended; /* ready: greeting and READY are done; ended: only the memory is left. */
	struct cgn_grave grave;
};
extern const struct net_conn_ops zmtp_peer_ops;
struct zmtp_peer *zmtp_peer_new(struct zmtp *s, struct net_conn *conn);
/* End the peer without a callback. */
void zmtp_peer_end(struct zmtp_peer *p, bool flush);
/* Returns false when the message was dropped. */
bool zmtp_peer_send(struct zmtp_peer *p, const struct cgn_str *parts, size_t n);
bool zmtp_peer_wants(const struct zmtp_peer *p, struct cgn_str topic);

/* ---- zmtp.c ---- */
#define ZMTP_TAG 0x2a7900ffU

struct zmtp {
	uint32_t tag;
	struct cgn_loop *loop;
	const struct zmtp_ops *ops;
	void *user;
	enum zmtp_kind kind;
	bool closed;
	char addr[300]; /* In the form that io/net/net takes. */
	char topic[ZMTP_MAX_TOPIC];
	size_t topic_n;
	size_t max_message, queue;
	cgn_nsec heartbeat;
	struct net_listener *listener; /* Listener of a socket that binds. */
	struct cgn_timer redial;
	struct cgn_backoff backoff;
	struct cgn_link peers;
	size_t n_peers; /* Peers, with or without a complete greeting. */
	uint64_t next_id;
	struct zmtp_stats stats;
	struct cgn_grave grave;
};
void zmtp_on_ready(struct zmtp_peer *p);
void zmtp_on_message(struct zmtp_peer *p);
void zmtp_on_gone(struct zmtp_peer *p, const char *why); /* The peer ended: report it and reconnect. */
