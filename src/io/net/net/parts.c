/* SPDX-License-Identifier: Apache-2.0 */
/* parts: write bytes of which some are lent. TLS encrypts them at once, so that nothing stays lent. */
#include "net_priv.h"

/* |n| bytes of the part are with the kernel, or will never be sent. */
static void part_done(const struct net_part *part, size_t n)
{
	if (part->loan != NULL)
		net_loan_pay(part->loan, n);
}

static void all_done(const struct net_part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		part_done(&parts[i], parts[i].n);
}

static bool part_queue(struct net_conn *c, const struct net_part *part, size_t skip)
{
	const uint8_t *p = part->p;
	if (part->n == skip)
		return true;
	if (part->loan != NULL)
		return net_queue_lend(&c->out, p + skip, part->n - skip, part->loan);
	return net_queue_add(&c->out, p + skip, part->n - skip);
}

static void write_clear(struct net_conn *c, const struct net_part *parts, size_t n, const struct iovec *iov)
{
	size_t sent = 0;
	bool well = net_conn_try(c, iov, n, &sent);
	for (size_t i = 0; i < n; i++) {
		size_t skip = sent < parts[i].n ? sent : parts[i].n;
		sent -= skip;
		part_done(&parts[i], skip);
		if (well && !part_queue(c, &parts[i], skip)) {
			/* net_conn_fail_memory also settles the loans of queued parts. */
			net_conn_fail_memory(c);
			well = false;
		} else if (well) {
			continue;
		}
		part_done(&parts[i], parts[i].n - skip);
	}
	if (well && c->out.bytes > 0)
		net_conn_queued(c);
}

void net_write_parts(struct net_conn *c, const struct net_part *parts, size_t n)
{
	struct iovec iov[NET_MAX_PARTS];
	if (n == 0)
		return;
	CGN_MUST(n <= NET_MAX_PARTS && c->state != NET_DIALING && c->state != NET_HANDSHAKE);
	for (size_t i = 0; i < n; i++) {
		iov[i] = net_iov(parts[i].p, parts[i].n);
		if (parts[i].loan != NULL)
			parts[i].loan->left += parts[i].n;
	}
	if (c->state == NET_OPEN && c->tls == NULL) {
		write_clear(c, parts, n, iov);
		return;
	}
	if (c->state == NET_OPEN)
		net_secure_write(c, iov, n);
	all_done(parts, n);
}
