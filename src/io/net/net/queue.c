/* SPDX-License-Identifier: Apache-2.0 */
/* queue: bytes waiting for a slow reader, copied into chunks that double from 4 to 64 KiB, or lent. An idle
 * connection holds no chunk. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/unlikely/unlikely.h"
#include "net_priv.h"

#define CHUNK_LEAST ((size_t)4096 - sizeof(struct net_chunk))
#define CHUNK_MOST  ((size_t)65536 - sizeof(struct net_chunk))
#define SEND_CHUNKS 64

struct net_chunk {
	struct net_chunk *next;
	const uint8_t *bytes; /* |data|, or lent memory. */
	struct net_loan *loan;
	size_t from, to, cap; /* cap: size of |data|. */
	uint8_t data[];
};

struct iovec net_iov(const void *p, size_t n)
{
	union {
		const void *in;
		void *out;
	} base = {p}; /* struct iovec has no const pointer. */
	return (struct iovec){base.out, n};
}

static struct net_chunk *chunk_add(struct net_queue *q, size_t cap)
{
	struct net_chunk *k = malloc(sizeof(*k) + cap);
	if (k == NULL)
		return NULL;
	*k = (struct net_chunk){.cap = cap, .bytes = k->data};
	if (q->tail != NULL)
		q->tail->next = k;
	else
		q->head = k;
	return q->tail = k;
}

static struct net_chunk *chunk_grow(struct net_queue *q, size_t n)
{
	size_t cap = q->tail != NULL && q->tail->cap > 0 ? q->tail->cap * 2 : CHUNK_LEAST;
	cap = cap < n || unlikely_way(UNLIKELY_chunk_exact) ? n : cap;
	return chunk_add(q, cap < CHUNK_MOST ? cap : CHUNK_MOST);
}

bool net_queue_add(struct net_queue *q, const void *p, size_t n)
{
	const uint8_t *at = p;
	while (n > 0) {
		struct net_chunk *k = q->tail;
		if ((k == NULL || k->to >= k->cap) && (k = chunk_grow(q, n)) == NULL)
			return false;
		size_t take = k->cap - k->to < n ? k->cap - k->to : n;
		memcpy(k->data + k->to, at, take);
		k->to += take;
		q->bytes += take;
		at += take;
		n -= take;
	}
	return true;
}

bool net_queue_lend(struct net_queue *q, const void *p, size_t n, struct net_loan *loan)
{
	struct net_chunk *k = chunk_add(q, 0);
	if (k == NULL)
		return false;
	k->bytes = p;
	k->loan = loan;
	k->to = n;
	q->bytes += n;
	q->lent += n;
	return true;
}

void net_loan_pay(struct net_loan *loan, size_t n)
{
	CGN_MUST(n <= loan->left);
	loan->left -= n;
	if (n > 0 && loan->left == 0)
		loan->done(loan);
}

static void chunk_paid(struct net_queue *q, const struct net_chunk *k, size_t n)
{
	if (k->loan == NULL)
		return;
	q->lent -= n;
	net_loan_pay(k->loan, n);
}

static void queue_eat(struct net_queue *q, size_t n)
{
	q->bytes -= n;
	while (n > 0) {
		struct net_chunk *k = q->head;
		size_t take = k->to - k->from < n ? k->to - k->from : n;
		k->from += take;
		n -= take;
		chunk_paid(q, k, take);
		if (k->from < k->to)
			return;
		q->head = k->next;
		if (q->head == NULL)
			q->tail = NULL;
		free(k);
	}
}

static size_t queue_gather(const struct net_queue *q, struct iovec *iov)
{
	size_t n = 0;
	size_t most = unlikely_way(UNLIKELY_send_one_chunk) ? 1 : SEND_CHUNKS;
	for (struct net_chunk *k = q->head; k != NULL && n < most; k = k->next)
		iov[n++] = net_iov(k->bytes + k->from, k->to - k->from);
	return n;
}

int net_queue_send(struct net_queue *q, int fd, size_t *sent)
{
	struct iovec iov[SEND_CHUNKS];
	*sent = 0;
	while (q->bytes > 0) {
		struct msghdr m = {.msg_iov = iov, .msg_iovlen = queue_gather(q, iov)};
		ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : errno;
		*sent += (size_t)n;
		queue_eat(q, (size_t)n);
	}
	return 0;
}

void net_queue_fini(struct net_queue *q)
{
	while (q->head != NULL) {
		struct net_chunk *k = q->head;
		q->head = k->next;
		chunk_paid(q, k, k->to - k->from);
		free(k);
	}
	*q = (struct net_queue){0};
}
