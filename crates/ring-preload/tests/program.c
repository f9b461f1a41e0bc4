/* Writes to its log in every way that the shim claims to see; program.rs
 * knows the lines. Compiled with _FORTIFY_SOURCE, as distributions do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
			_exit(1); \
		} \
	} while (0)

static int log_fd;

static void say(int fd, const char *text)
{
	errno = 77;
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text) && errno == 77);
}

static void formatted(FILE *stream, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	CHECK(vfprintf(stream, format, arguments) > 0);
	va_end(arguments);
}

static void *thread(void *argument)
{
	char line[64];

	for (int i = 0; i < 1000; i++) {
		snprintf(line, sizeof(line), "thread %d line %d\n", *(int *)argument, i);
		say(log_fd, line);
	}
	return NULL;
}

static void on_signal(int signal)
{
	(void)signal;
	say(log_fd, "from a signal handler\n");
}

static void expect_end(pid_t child)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void descriptors(const char *path)
{
	struct iovec parts[] = { { "writev ", 7 }, { "in\nthree", 8 }, { " parts\n", 7 } };
	int fd, other;

	/* Flags that the compiler does not know, so that open is __open_2. */
	volatile int append = O_WRONLY | O_APPEND;

	say(log_fd, "write\ntwo lines at once\nin ");
	say(log_fd, "two ");
	say(log_fd, "parts\n");
	CHECK(writev(log_fd, parts, 3) == 22);
	CHECK((fd = open(path, append)) >= 0);
	say(fd, "open\n");
	CHECK((other = dup(fd)) >= 0 && close(fd) == 0);
	say(other, "dup\n");
	CHECK(dup2(other, 200) == 200 && dup3(other, 201, O_CLOEXEC) == 201);
	CHECK((fd = fcntl(other, F_DUPFD_CLOEXEC, 202)) >= 202);
	CHECK(close(other) == 0);
	say(200, "dup2\n");
	say(201, "dup3\n");
	say(fd, "fcntl\n");
	CHECK(close(200) == 0 && close(201) == 0);
	say(fd, "no end");
	CHECK(close(fd) == 0);
	errno = 0;
	CHECK(write(fd, "x", 1) == -1 && errno == EBADF);
	CHECK((fd = creat(path, 0644)) >= 0);
	say(fd, "creat\n");
	CHECK(close(fd) == 0);
	CHECK((fd = openat(AT_FDCWD, path, append)) >= 0);
	say(fd, "openat\n");
	CHECK(close(fd) == 0);
	/* The number is another file's now. */
	CHECK((other = open("/dev/null", O_WRONLY)) == fd);
	say(other, "not for the log\n");
	CHECK(close(other) == 0);
}

static void streams(const char *path)
{
	FILE *stream = fopen(path, "a");
	int fd;

	CHECK(stream != NULL && fileno(stream) >= 0);
	CHECK(fprintf(stream, "fprintf %d\n", 1) > 0);
	formatted(stream, "vfprintf %s\n", "x");
	CHECK(fputs("fputs\n", stream) >= 0 && putc('p', stream) == 'p');
	CHECK(fwrite("utc\nfwrite\n", 1, 11, stream) == 11 && fflush(stream) == 0);
	CHECK(fputs("written by ", stream) >= 0 && fflush(stream) == 0);
	CHECK(fputs("fclose\n", stream) >= 0 && fclose(stream) == 0);
	CHECK((fd = open(path, O_WRONLY | O_APPEND)) >= 0);
	CHECK((stream = fdopen(fd, "a")) != NULL && setvbuf(stream, NULL, _IOLBF, 0) == 0);
	CHECK(fputs("line buffered\n", stream) >= 0 && fclose(stream) == 0);
	errno = 0;
	CHECK(write(fd, "x", 1) == -1 && errno == EBADF);
	CHECK((stream = fopen("/dev/null", "w")) != NULL);
	CHECK(fputs("not for the log\n", stream) >= 0 && fclose(stream) == 0);
}

static void children(void)
{
	pid_t child = fork();

	if (child == 0) {
		say(log_fd, "child of fork\n");
		_exit(0);
	}
	expect_end(child);
	child = _Fork();
	if (child == 0) {
		say(log_fd, "child of _Fork\n");
		_exit(0);
	}
	expect_end(child);
	/* As posix_spawn and Python's subprocess do it. */
	child = vfork();
	if (child == 0) {
		dup2(1, log_fd);
		close_range(3, ~0U, 0);
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	expect_end(child);
	say(log_fd, "parent after vfork\n");
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_signal };
	pthread_t threads[4];
	int numbers[4];

	CHECK(argc == 2);
	CHECK((log_fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) >= 0);
	descriptors(argv[1]);
	streams(argv[1]);
	for (int i = 0; i < 4; i++) {
		numbers[i] = i;
		CHECK(pthread_create(&threads[i], NULL, thread, &numbers[i]) == 0);
	}
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
	children();
	/* Everything but what the shim has open is closed. */
	CHECK(dup2(log_fd, 3) == 3);
	closefrom(4);
	say(3, "after closefrom\n");
	return 0;
}
