/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded (LD_PRELOAD) into a program under test: shifts the wall clock by the number of seconds that the
 * file $CGN_CLOCK_SHIFT holds at that moment, "-86400" for instance. Monotonic clocks are unchanged. */
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <sys/syscall.h>
#include <sys/time.h>

int clock_gettime(clockid_t id, struct timespec *out);
int gettimeofday(struct timeval *restrict out, void *restrict zone);
time_t time(time_t *out);

static long shift_read(void)
{
	char text[32];
	const char *path = getenv("CGN_CLOCK_SHIFT");
	int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
	if (fd >= 0)
		(void)close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t id, struct timespec *out)
{
	int rc = (int)syscall(SYS_clock_gettime, id, out);
	if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		out->tv_sec += shift_read();
	return rc;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
	struct timespec now;
	int rc = clock_gettime(CLOCK_REALTIME, &now);
	(void)zone;
	*out = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
	return rc;
}

time_t time(time_t *out)
{
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return (time_t)-1;
	if (out != NULL)
		*out = now.tv_sec;
	return now.tv_sec;
}
