/* A program with functions of its own by the names of the C library's, which call others of these. */
#include "rule.h"
#include <stdarg.h>
#include <sys/stat.h>

static int opened, opened_stream, asked;

int open(const char *path, int flags, ...)
{
	va_list rest;
	int mode;

	va_start(rest, flags);
	mode = va_arg(rest, int);
	va_end(rest);
	opened++;
	return open64(path, flags, mode);
}

FILE *fopen(const char *path, const char *mode)
{
	opened_stream++;
	return fopen64(path, mode);
}

int stat(const char *path, struct stat *status)
{
	asked++;
	return stat64(path, (struct stat64 *)status);
}

int main(int argc, char **argv)
{
	struct stat status;
	FILE *stream;
	int fd;

	start(argc, argv);
	ibv_free_device_list(ibv_get_device_list(NULL));
	opened = opened_stream = asked = 0;
	fd = open("/dev/null", O_RDONLY);
	CHECK("files-own", fd >= 0 && close(fd) == 0 && opened == 1);
	FAILS("files-own", open("/nowhere/file", O_RDONLY), ENOENT);
	stream = fopen("/dev/null", "r");
	CHECK("files-own", stream && fclose(stream) == 0 && opened_stream == 1);
	CHECK("files-own", stat("/dev/null", &status) == 0 && S_ISCHR(status.st_mode) && asked == 1);
	FAILS("files-own", stat("/nowhere/file", &status), ENOENT);
	ok("files-own");
	return 0;
}
