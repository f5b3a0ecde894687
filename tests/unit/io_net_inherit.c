/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/stat.h>

#include "io/net/net/inherit.h"
#include "io/net/net/net.h"

static ino_t offered;

static void on_offer(void *arg, int fd)
{
	struct stat st;
	(void)arg;
	assert_int_equal(fstat(fd, &st), 0);
	offered = st.st_ino;
}

static void on_unused(void *arg, const char *name)
{
	snprintf(arg, 32, "%s", name);
}

static void on_accept(void *user, struct net_conn *c)
{
	(void)user;
	(void)c;
}

/* Bind to a port of the kernel's choice; |share|: with SO_REUSEPORT. The descriptor is |at|. */
static unsigned socket_place(int at, bool share, bool listens)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof sa;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_true(fd >= 0);
	if (share)
		assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &(int){1}, sizeof(int)), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	if (listens)
		assert_int_equal(listen(fd, 5), 0);
	if (fd != at) {
		assert_int_equal(dup2(fd, at), at);
		close(fd);
	}
	return ntohs(sa.sin_port);
}

static ino_t inode_of(int fd)
{
	struct stat st;
	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static void manager_gives(const char *count, const char *names)
{
	char pid[20];
	snprintf(pid, sizeof pid, "%d", (int)getpid());
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", count, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	net_inherit_begin();
	assert_null(getenv("LISTEN_PID"));
	assert_null(getenv("LISTEN_FDS"));
	assert_null(getenv("LISTEN_FDNAMES"));
}

static struct net_listener *listen_at(struct cgn_loop *l, unsigned port, bool keep)
{
	char addr[32];
	struct cgn_err err;
	struct net_listener *ln = NULL;
	snprintf(addr, sizeof addr, "127.0.0.1:%u", port);
	const struct net_listen_cfg cfg = {.addr = addr, .reuse_port = true, .keep = keep};
	(void)!cgn_ok(net_listen(l, &cfg, on_accept, NULL, &ln, &err));
	return ln;
}

static void a_socket_of_the_manager_is_used(void **state)
{
	(void)state;
	char unused[32] = "";
	struct cgn_loop *l;
	struct cgn_err err;
	unsigned port = socket_place(3, true, true);
	(void)socket_place(4, false, true);  /* No listener wants this one. */
	(void)socket_place(5, false, false); /* This socket does not listen. */
	ino_t kept = inode_of(3);
	manager_gives("3", "one:two:three");
	assert_int_equal(fcntl(5, F_GETFD), -1);
	assert_int_equal(fcntl(3, F_GETFD), FD_CLOEXEC);
	assert_true(cgn_ok(cgn_loop_new(&l, &err)));
	net_inherit_offer(on_offer, NULL);
	struct net_listener *ln = listen_at(l, port, true);
	assert_non_null(ln);
	assert_int_equal(offered, kept);
	assert_int_equal(net_listener_port(ln), port);
	/* A second worker gets a socket of its own beside the first. */
	struct net_listener *second = listen_at(l, port, true);
	assert_non_null(second);
	assert_int_not_equal(offered, kept);
	net_inherit_offer(NULL, NULL);
	net_inherit_end(on_unused, unused);
	assert_string_equal(unused, "two");
	assert_int_equal(fcntl(4, F_GETFD), -1);
	net_listener_close(&ln);
	net_listener_close(&second);
	cgn_loop_stop(l);
	cgn_loop_run(l);
	cgn_loop_free(&l);
}

static void one_socket_of_a_socket_unit_serves_all_workers(void **state)
{
	(void)state;
	struct cgn_loop *l;
	struct cgn_err err;
	unsigned port = socket_place(3, false, true);
	ino_t kept = inode_of(3);
	manager_gives("1", "cgn-router.socket");
	assert_true(cgn_ok(cgn_loop_new(&l, &err)));
	net_inherit_offer(on_offer, NULL);
	assert_null(listen_at(l, port, false)); /* Only a listener that is to be kept takes one. */
	struct net_listener *a = listen_at(l, port, true), *b = listen_at(l, port, true);
	assert_non_null(a);
	assert_non_null(b);
	assert_int_equal(offered, kept);
	net_inherit_offer(NULL, NULL);
	net_inherit_end(NULL, NULL);
	net_listener_close(&a);
	net_listener_close(&b);
	cgn_loop_stop(l);
	cgn_loop_run(l);
	cgn_loop_free(&l);
}

static void sockets_of_another_process_are_left_alone(void **state)
{
	(void)state;
	(void)socket_place(3, false, true);
	setenv("LISTEN_PID", "1", 1);
	setenv("LISTEN_FDS", "1", 1);
	net_inherit_begin();
	net_inherit_end(NULL, NULL);
	assert_int_not_equal(fcntl(3, F_GETFD), -1);
	close(3);
}

int main(void)
{
	/* Free the descriptors 3, 4, 5, which the manager gives. */
	for (int fd = 3; fd < 16; fd++)
		close(fd);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_socket_of_the_manager_is_used),
		cmocka_unit_test(one_socket_of_a_socket_unit_serves_all_workers),
		cmocka_unit_test(sockets_of_another_process_are_left_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
