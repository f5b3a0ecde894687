/* SPDX-License-Identifier: Apache-2.0 */
/* packet: both ends on one loop, and misbehaving peers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "io/net/net/packet.h"
#include "loop_until.h"

struct world {
	struct cgn_loop *l;
	struct packet_listener *ln;
	struct packet_conn *client, *served;
	char dir[64], path[96];
	unsigned got, fds, closed, drained, want;
	size_t bytes, last_n;
	uint8_t last[64];
	int kept;
	bool keep, refuse, pause_at_first;
	enum cgn_code code; /* Code of the first end. */
};

static void on_packet(struct packet_conn *c, void *user, const uint8_t *p, size_t n, int *fd)
{
	struct world *w = user;
	w->got++;
	w->bytes += n;
	w->last_n = n;
	memcpy(w->last, p, n < sizeof w->last ? n : sizeof w->last);
	w->fds += *fd >= 0;
	if (w->keep && *fd >= 0) {
		w->kept = *fd;
		*fd = -1;
	}
	if (w->pause_at_first && w->got == 1)
		packet_pause(c);
}

static void on_drain(struct packet_conn *c, void *user)
{
	(void)c;
	((struct world *)user)->drained++;
}

static void on_close(struct packet_conn *c, void *user, const struct cgn_err *why)
{
	struct world *w = user;
	if (c == w->client)
		w->client = NULL;
	else
		w->served = NULL;
	if (w->closed++ == 0)
		w->code = why->code;
}

static const struct packet_ops ops = {.on_packet = on_packet, .on_drain = on_drain, .on_close = on_close};

static void on_accept(void *user, struct packet_conn *c)
{
	struct world *w = user;
	if (w->refuse)
		return;
	w->served = c;
	packet_take(c, &ops, w);
}

static bool server_opened(struct world *w)
{
	return w->served != NULL;
}
static bool got_all(struct world *w)
{
	return w->got >= w->want;
}
static bool both_closed(struct world *w)
{
	return w->closed >= w->want;
}

static void world_setup(struct world *w)
{
	*w = (struct world){.kept = -1};
	(void)snprintf(w->dir, sizeof w->dir, "/tmp/cgn-packet-XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	(void)snprintf(w->path, sizeof w->path, "%s/s", w->dir);
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	const struct packet_listen_cfg cfg = {.path = w->path, .max_queue = 65536};
	assert_true(cgn_ok(packet_listen(w->l, &cfg, on_accept, w, &w->ln, NULL)));
}

static void world_connect(struct world *w, size_t max_queue)
{
	world_setup(w);
	assert_true(cgn_ok(packet_connect(w->l, w->path, max_queue, &ops, w, &w->client, NULL)));
	loop_until(w->l, server_opened, w);
}

static void world_teardown(struct world *w)
{
	packet_close(&w->client);
	packet_close(&w->served);
	packet_listener_close(&w->ln);
	cgn_loop_stop(w->l);
	cgn_loop_run(w->l);
	cgn_loop_free(&w->l);
	assert_int_equal(access(w->path, F_OK), -1); /* The listener removed its file. */
	assert_int_equal(rmdir(w->dir), 0);
}

static void packet_say(struct packet_conn *c, const void *p, size_t n, int fd)
{
	struct iovec iov = {.iov_len = n};
	memcpy(&iov.iov_base, &p, sizeof p);
	packet_send(c, &iov, 1, fd);
}

static void packets_keep_their_bounds(void **state)
{
	struct world w;
	(void)state;
	world_connect(&w, 65536);
	struct stat st;
	assert_int_equal(stat(w.path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0660);
	packet_say(w.client, "one", 3, -1);
	packet_say(w.client, "four", 4, -1);
	w.want = 2;
	loop_until(w.l, got_all, &w);
	assert_int_equal(w.last_n, 4);
	assert_memory_equal(w.last, "four", 4);
	char *long_one = calloc(1, PACKET_MAX);
	packet_say(w.served, long_one, PACKET_MAX, -1);
	w.want = 3;
	loop_until(w.l, got_all, &w);
	assert_int_equal(w.last_n, PACKET_MAX);
	free(long_one);
	world_teardown(&w);
}

static void a_descriptor_comes_along(void **state)
{
	struct world w;
	char text[4] = "";
	(void)state;
	world_connect(&w, 65536);
	int fd = memfd_create("t", MFD_CLOEXEC);
	assert_int_equal(write(fd, "abc", 3), 3);
	w.keep = true;
	packet_say(w.served, "x", 1, fd);
	assert_int_equal(close(fd), 0);
	w.want = 1;
	loop_until(w.l, got_all, &w);
	assert_true(w.kept >= 0);
	assert_int_equal(pread(w.kept, text, 3, 0), 3);
	assert_string_equal(text, "abc");
	assert_true((fcntl(w.kept, F_GETFD) & FD_CLOEXEC) != 0);
	assert_int_equal(close(w.kept), 0);
	world_teardown(&w);
}

/* A descriptor that no callback takes is closed: the lowest free number stays the same. */
static void a_descriptor_not_taken_is_closed(void **state)
{
	struct world w;
	(void)state;
	world_connect(&w, 65536);
	int before = dup(0);
	assert_int_equal(close(before), 0);
	for (unsigned i = 0; i < 10; i++)
		packet_say(w.client, "x", 1, w.l != NULL ? 0 : -1);
	w.want = 10;
	loop_until(w.l, got_all, &w);
	assert_int_equal(w.fds, 10);
	int after = dup(0);
	assert_int_equal(after, before);
	assert_int_equal(close(after), 0);
	world_teardown(&w);
}

static void what_the_socket_does_not_take_waits(void **state)
{
	struct world w;
	char packet[1000] = "";
	(void)state;
	world_connect(&w, 8 << 20);
	for (unsigned i = 0; i < 5000; i++)
		packet_say(w.client, packet, sizeof packet, i == 4999 ? 0 : -1);
	assert_true(packet_queued(w.client) > 0);
	w.want = 5000;
	loop_until(w.l, got_all, &w);
	assert_int_equal(w.bytes, 5000 * sizeof packet);
	assert_int_equal(w.fds, 1); /* A queued descriptor leaves with its packet. */
	assert_true(w.drained > 0);
	assert_int_equal(packet_queued(w.client), 0);
	world_teardown(&w);
}

static void a_queue_has_its_bound(void **state)
{
	struct world w;
	char packet[1000] = "";
	(void)state;
	world_connect(&w, 65536);
	packet_pause(w.client);
	for (unsigned i = 0; i < 5000; i++)
		packet_say(w.served, packet, sizeof packet, -1);
	w.want = 1;
	loop_until(w.l, both_closed, &w);
	assert_int_equal(w.code, CGN_OVERLOADED);
	assert_null(w.served);
	assert_int_equal(w.got, 0);
	world_teardown(&w);
}

static void a_pause_holds_packets_back_but_not_the_end(void **state)
{
	struct world w;
	(void)state;
	world_connect(&w, 65536);
	w.pause_at_first = true;
	for (unsigned i = 0; i < 3; i++)
		packet_say(w.client, "x", 1, -1);
	w.want = 1;
	loop_until(w.l, got_all, &w);
	assert_int_equal(w.got, 1);
	packet_resume(w.served);
	w.want = 3;
	loop_until(w.l, got_all, &w);
	packet_pause(w.served);
	packet_close(&w.client);
	w.want = 1;
	loop_until(w.l, both_closed, &w);
	assert_int_equal(w.code, CGN_UNAVAILABLE);
	assert_null(w.served);
	world_teardown(&w);
}

static int raw_connect(const struct world *w)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	memcpy(sa.sun_path, w->path, sizeof w->path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&sa, sizeof sa), 0);
	return fd;
}

static void too_long_a_packet_ends_it(void **state)
{
	struct world w;
	(void)state;
	world_setup(&w);
	int fd = raw_connect(&w);
	loop_until(w.l, server_opened, &w);
	char *big = calloc(1, PACKET_MAX + 1);
	assert_int_equal(send(fd, big, PACKET_MAX + 1, 0), PACKET_MAX + 1);
	free(big);
	w.want = 1;
	loop_until(w.l, both_closed, &w);
	assert_int_equal(w.code, CGN_INVALID);
	assert_int_equal(w.got, 0);
	assert_int_equal(close(fd), 0);
	world_teardown(&w);
}

static unsigned open_descriptors(void)
{
	unsigned n = 0;
	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void end_by(size_t n)
{
	struct world w;
	world_setup(&w);
	int fd = raw_connect(&w);
	loop_until(w.l, server_opened, &w);
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control = {0};
	struct iovec iov = {(char[]){"x"}, 1};
	struct msghdr m = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(n * sizeof(int))};
	control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(n * sizeof(int)),
		.cmsg_level = SOL_SOCKET,
		.cmsg_type = SCM_RIGHTS};
	memset(CMSG_DATA(&control.head), 0, n * sizeof(int)); /* Descriptor 0, many times. */
	unsigned before = open_descriptors();
	assert_int_equal(sendmsg(fd, &m, 0), 1);
	w.want = 1;
	loop_until(w.l, both_closed, &w);
	assert_int_equal(w.got, 0);
	assert_int_equal(w.code, CGN_INVALID);
	/* Only the connection's descriptor is closed; no received one is left open. */
	assert_int_equal(open_descriptors(), before - 1);
	assert_int_equal(close(fd), 0);
	world_teardown(&w);
}

/* Two descriptors fit into the padding behind one. */
static void two_descriptors_end_it(void **state)
{
	(void)state;
	for (size_t n = 2; n <= 4; n++)
		end_by(n);
}

static void a_connection_not_taken_is_closed(void **state)
{
	struct world w;
	(void)state;
	world_setup(&w);
	w.refuse = true;
	assert_true(cgn_ok(packet_connect(w.l, w.path, 65536, &ops, &w, &w.client, NULL)));
	w.want = 1;
	loop_until(w.l, both_closed, &w);
	assert_int_equal(w.code, CGN_UNAVAILABLE);
	world_teardown(&w);
}

static void an_absent_server_is_reported_at_once(void **state)
{
	struct world w;
	struct cgn_err err = {0};
	struct packet_conn *c = NULL;
	(void)state;
	world_setup(&w);
	assert_int_equal(packet_connect(w.l, "/tmp/cgn-no-such-socket", 65536, &ops, &w, &c, &err).code,
		CGN_UNAVAILABLE);
	assert_non_null(strstr(err.msg, "/tmp/cgn-no-such-socket"));
	const struct packet_listen_cfg cfg = {.path = w.path};
	struct packet_listener *second = NULL;
	assert_int_equal(packet_listen(w.l, &cfg, on_accept, &w, &second, &err).code, CGN_ADDRESS_IN_USE);
	assert_null(second);
	world_teardown(&w);
}

static void a_second_loop_accepts_too(void **state)
{
	struct world w;
	struct packet_listener *second = NULL;
	(void)state;
	world_setup(&w);
	const struct packet_listen_cfg cfg = {.path = w.path, .max_queue = 65536, .with = w.ln};
	assert_true(cgn_ok(packet_listen(w.l, &cfg, on_accept, &w, &second, NULL)));
	packet_listener_close(&second); /* A second close does not remove the file. */
	assert_int_equal(access(w.path, F_OK), 0);
	assert_true(cgn_ok(packet_listen(w.l, &cfg, on_accept, &w, &second, NULL)));
	assert_true(cgn_ok(packet_connect(w.l, w.path, 65536, &ops, &w, &w.client, NULL)));
	loop_until(w.l, server_opened, &w);
	packet_listener_close(&second);
	world_teardown(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(packets_keep_their_bounds),
		cmocka_unit_test(a_descriptor_comes_along),
		cmocka_unit_test(a_descriptor_not_taken_is_closed),
		cmocka_unit_test(what_the_socket_does_not_take_waits),
		cmocka_unit_test(a_queue_has_its_bound),
		cmocka_unit_test(a_pause_holds_packets_back_but_not_the_end),
		cmocka_unit_test(too_long_a_packet_ends_it),
		cmocka_unit_test(two_descriptors_end_it),
		cmocka_unit_test(a_connection_not_taken_is_closed),
		cmocka_unit_test(an_absent_server_is_reported_at_once),
		cmocka_unit_test(a_second_loop_accepts_too),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
