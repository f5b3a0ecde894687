/* SPDX-License-Identifier: Apache-2.0 */
/* call: how a replacement of a call is written. */
#pragma once
#include <errno.h>

/* A replacement, declared first as the warnings ask. */
#define CALL(type, name, ...)                   \
	extern type __real_##name(__VA_ARGS__); \
	extern type __wrap_##name(__VA_ARGS__); \
	type __wrap_##name(__VA_ARGS__)
#define SIMULATED_OR(real)   \
	if (!is_simulated()) \
	return real

/* A replacement that fails on a fiber and in the test program alike. */
#define REFUSED(type, name, error, ...)         \
	extern type __wrap_##name(__VA_ARGS__); \
	type __wrap_##name(__VA_ARGS__)         \
	{                                       \
		errno = error;                  \
		return (type) - 1;              \
	}

/* Return 0, or -1 with errno. */
static inline int result_of(int error)
{
	errno = error != 0 ? error : errno;
	return error == 0 ? 0 : -1;
}
