/* SPDX-License-Identifier: Apache-2.0 */
/* kvcalls: commands of the Redis port, and messages of the descriptor path. */
#include "kvcalls.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../world/world.h"
#include "base/core/err.h"
#include "http.h"

#define VALUE_MOST 400000U

/* ---- connections ---- */

static int dial_unix(const char *path, int type)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	(void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	int fd = socket(AF_UNIX, type, 0);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)(const void *)&a, sizeof a) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static int dial_tcp(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
		.sin_port = htons(7092),
		.sin_addr.s_addr = htonl(0x7f000001)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)(const void *)&a, sizeof a) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static void key_of(unsigned key, uint8_t out[36])
{
	for (unsigned i = 0; i < 32; i++)
		out[i] = (uint8_t)(key * 37 + i * 11 + 5);
	memset(out + 32, 0, 4);
}

/* ---- the Redis port ---- */

static bool more_in(struct kvcall *c)
{
	if (c->room - c->n_in < 65536) {
		c->room = c->room * 2 + 131072;
		c->in = CGN_GROWN(c->in, c->room);
	}
	ssize_t got = recv(c->fd, c->in + c->n_in, c->room - c->n_in, 0);
	if (got <= 0)
		return false;
	c->n_in += (size_t)got;
	return true;
}

/* Read one answer: its type, and its number or the value's place. */
static bool resp_answer(struct kvcall *c, char *type, long *number, const char **value)
{
	char *end;
	c->at = 0;
	while (c->n_in == 0 || (end = memchr(c->in, '\n', c->n_in)) == NULL)
		if (!more_in(c))
			return false;
	*type = c->in[0];
	*number = strtol(c->in + 1, NULL, 10);
	size_t head = (size_t)(end - c->in) + 1;
	c->at = head;
	if (*type == '$' && *number >= 0) {
		while (c->n_in < head + (size_t)*number + 2)
			if (!more_in(c))
				return false;
		*value = c->in + head;
		c->at = head + (size_t)*number + 2;
	}
	if (*type == '-')
		world_tell("  answer: %.*s", (int)head - 2, c->in);
	return true;
}

static void answer_eat(struct kvcall *c)
{
	memmove(c->in, c->in + c->at, c->n_in - c->at);
	c->n_in -= c->at;
}

static void hex_key(unsigned key, char out[65])
{
	uint8_t k[36];
	key_of(key, k);
	for (size_t i = 0; i < 32; i++)
		(void)snprintf(out + 2 * i, 3, "%02x", k[i]);
}

static bool resp_send(struct kvcall *c, const struct kv_op *op)
{
	static const char *const names[] = {[KV_READ] = "GET",
		[KV_WRITE] = "SET",
		[KV_WRITE_NEW] = "SETNX",
		[KV_SWAP] = "GETSET",
		[KV_REMOVE] = "DEL",
		[KV_LOOK] = "EXISTS"};
	char hex[65], head[200];
	bool writes = op->version != 0;
	hex_key(op->key, hex);
	int n = snprintf(head, sizeof head, "*%d\r\n$%zu\r\n%s\r\n$64\r\n%s\r\n", writes ? 3 : 2,
		strlen(names[op->kind]), names[op->kind], hex);
	if (!writes)
		return http_send_all(c->fd, head, (size_t)n);
	size_t size = kv_value_size(op->key, op->version);
	n += snprintf(head + n, sizeof head - (size_t)n, "$%zu\r\n", size);
	char *value = CGN_NEW_ARRAY(char, (size_t)n + size + 2);
	memcpy(value, head, (size_t)n);
	kv_value_make(op->key, op->version, value + n);
	memcpy(value + (size_t)n + size, "\r\n", 2);
	bool well = http_send_all(c->fd, value, (size_t)n + size + 2);
	free(value);
	return well;
}

static bool resp_op(struct kvcall *c, struct kv_op *op)
{
	char type;
	long number;
	const char *value = NULL;
	if (!resp_send(c, op) || !resp_answer(c, &type, &number, &value))
		return false;
	if (type == '-')
		kv_end(op, KV_REFUSED, 0);
	else if (type == '$')
		kv_end(op, KV_DONE, number < 0 ? 0 : kv_value_version(op->key, value, (size_t)number));
	else
		kv_end(op, KV_DONE, type == ':' ? (unsigned)number : 0);
	answer_eat(c);
	return true;
}

long kvcall_count(struct kvcall *c)
{
	char type;
	long number;
	const char *value;
	if (!http_send_all(c->fd, "*1\r\n$6\r\nDBSIZE\r\n", 16) || !resp_answer(c, &type, &number, &value))
		return -1;
	answer_eat(c);
	return number;
}

/* ---- values by descriptor ---- */

enum { BULK_HELLO = 1, BULK_LOOKUP, BULK_GET, BULK_RELEASE, BULK_PUT, BULK_REMOVE };
enum { BULK_WELCOME = 65, BULK_INFOS, BULK_VALUE, BULK_COUNT, BULK_FAILED };

static bool bulk_send(struct kvcall *c, uint8_t kind, uint8_t flags, uint16_t count, const void *body,
	size_t n)
{
	char *m = CGN_NEW_ARRAY(char, 16 + n);
	uint64_t id = ++c->ids;
	memset(m, 0, 16);
	m[0] = (char)kind;
	m[1] = (char)flags;
	memcpy(m + 2, &count, 2);
	memcpy(m + 8, &id, 8);
	if (n > 0)
		memcpy(m + 16, body, n);
	ssize_t sent = send(c->fd, m, 16 + n, MSG_NOSIGNAL);
	free(m);
	return sent == (ssize_t)(16 + n);
}

/* Receive a message into c->in. |*fd|: the descriptor in it, or -1. Return its type, 0: the connection has ended. */
static uint8_t bulk_receive(struct kvcall *c, int *fd)
{
	char control[CMSG_SPACE(sizeof(int))];
	if (c->room < 65536) {
		c->room = 65536;
		c->in = CGN_GROWN(c->in, c->room);
	}
	struct iovec v = {c->in, c->room};
	struct msghdr m = {.msg_iov = &v,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof control};
	ssize_t got = recvmsg(c->fd, &m, 0);
	*fd = -1;
	struct cmsghdr *h = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	if (h != NULL)
		memcpy(fd, CMSG_DATA(h), sizeof *fd);
	c->n_in = got > 0 ? (size_t)got : 0;
	return got >= 16 ? (uint8_t)c->in[0] : 0;
}

static bool bulk_hello(struct kvcall *c)
{
	int fd;
	uint64_t bytes;
	if (!bulk_send(c, BULK_HELLO, 0, 0, "CGNKVBLK\1\0\0\0", 12) || bulk_receive(c, &fd) != BULK_WELCOME)
		return false;
	memcpy(&bytes, c->in + 16 + 32, 8);
	c->max_inline = *(const uint32_t *)(const void *)(c->in + 16 + 12);
	c->memory_bytes = (size_t)bytes;
	c->memory = mmap(NULL, c->memory_bytes, PROT_READ, MAP_SHARED, fd, 0);
	(void)close(fd);
	return c->memory != MAP_FAILED;
}

static bool bulk_put(struct kvcall *c, const struct kv_op *op)
{
	size_t size = kv_value_size(op->key, op->version), head = 36 + 44 + 4;
	uint8_t *body = CGN_NEW_ARRAY(uint8_t, head + size);
	uint64_t n = size;
	memset(body, 0, head);
	key_of(op->key, body);
	memcpy(body + 36, &n, 8);
	kv_value_make(op->key, op->version, (char *)body + head);
	bool well = bulk_send(c, BULK_PUT, op->kind == KV_WRITE_NEW ? 2 : 0, 0, body, head + size);
	free(body);
	return well;
}

/* The value's pieces lie in the shared memory. */
static unsigned bulk_value(struct kvcall *c, unsigned key)
{
	uint64_t lease, size, at, n, have = 0;
	uint16_t count, text;
	memcpy(&count, c->in + 2, 2);
	memcpy(&lease, c->in + 16, 8);
	memcpy(&size, c->in + 24, 8);
	size_t p = 16 + 48;
	for (int i = 0; i < 2; i++) {
		memcpy(&text, c->in + p, 2);
		p += 2 + text;
	}
	if (size > VALUE_MOST)
		world_fail("key %u: a value of %llu bytes", key, (unsigned long long)size);
	char *value = CGN_NEW_ARRAY(char, size + 1);
	for (uint16_t i = 0; i < count; i++, p += 16) {
		memcpy(&at, c->in + p, 8);
		memcpy(&n, c->in + p + 8, 8);
		if (at + n > c->memory_bytes || have + n > size)
			world_fail("key %u: a piece of a value lies outside", key);
		memcpy(value + have, c->memory + at, n);
		have += n;
	}
	unsigned version = kv_value_version(key, value, have);
	free(value);
	(void)bulk_send(c, BULK_RELEASE, 0, 1, &lease, 8);
	return version;
}

static bool bulk_op(struct kvcall *c, struct kv_op *op)
{
	static const uint8_t messages[] =
		{[KV_READ] = BULK_GET, [KV_REMOVE] = BULK_REMOVE, [KV_LOOK] = BULK_LOOKUP};
	uint8_t key[36];
	uint32_t status = 0;
	int fd;
	key_of(op->key, key);
	bool sent = op->version != 0
		? bulk_put(c, op)
		: bulk_send(c, messages[op->kind], 0, op->kind == KV_READ ? 0 : 1, key, sizeof key);
	uint8_t got = sent ? bulk_receive(c, &fd) : 0;
	if (got == 0)
		return false;
	if (got == BULK_FAILED) {
		memcpy(&status, c->in + 16, 4);
		world_tell("  answer: %u %.*s", status, (int)(c->n_in - 22), c->in + 22);
		bool missing = status == 5; /* gRPC's NOT_FOUND */
		if (op->kind == KV_READ && missing)
			kv_end(op, KV_DONE, 0);
		else
			kv_end(op, KV_REFUSED, 0);
	} else if (got == BULK_VALUE) {
		kv_end(op, KV_DONE, bulk_value(c, op->key));
	} else if (got == BULK_COUNT) {
		memcpy(&status, c->in + 16, 4);
		kv_end(op, KV_DONE, status);
	} else if (op->kind == KV_LOOK) {
		memcpy(&status, c->in + 16 + 20, 4); /* tiers */
		kv_end(op, KV_DONE, (status & 0xf) != 0);
	} else {
		kv_end(op, KV_DONE, 1);
	}
	return true;
}

/* ---- both ---- */

bool kvcall_open(struct kvcall *c, bool bulk, bool tcp)
{
	*c = (struct kvcall){.bulk = bulk};
	c->fd = bulk  ? dial_unix("/run/kv.sock.bulk", SOCK_SEQPACKET)
		: tcp ? dial_tcp()
		      : dial_unix("/run/kv.sock.resp", SOCK_STREAM);
	if (c->fd >= 0 && bulk && !bulk_hello(c))
		kvcall_close(c);
	return c->fd >= 0;
}

void kvcall_close(struct kvcall *c)
{
	if (c->fd >= 0)
		(void)close(c->fd);
	if (c->memory != NULL && c->memory != MAP_FAILED)
		(void)munmap(c->memory, c->memory_bytes);
	free(c->in);
	*c = (struct kvcall){.fd = -1};
}

bool kvcall_op(struct kvcall *c, enum kv_kind kind, unsigned key)
{
	if (c->bulk && (kind == KV_SWAP || kind == KV_WRITE_NEW))
		kind = KV_WRITE;
	struct kv_op *op = kv_begin(kind, key);
	if (op == NULL) {
		world_sleep(WORLD_MS);
		return true;
	}
	if (c->bulk && op->version != 0 && kv_value_size(op->key, op->version) > 60000) {
		kv_end(op, KV_REFUSED, 0); /* Too large for a message */
		return true;
	}
	bool well = c->bulk ? bulk_op(c, op) : resp_op(c, op);
	if (!well)
		kv_end(op, KV_WAITS, 0);
	return well;
}
