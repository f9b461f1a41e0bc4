/* A small UDP server with several threads that answers who says "hello" and
 * logs everybody else, and the patch that makes it log into a ring: what is
 * within #ifdef WITH_RING. Without it, the log is a file.
 *
 *   udp_server PORT LOG [THREADS]
 *
 * With the patch LOG is a directory, with one segment for each thread. It
 * serves until SIGTERM or SIGINT.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#ifdef WITH_RING
#include <weir_ring.h>
#endif

enum { MAX_THREADS = 64 };

struct server {
	pthread_t thread;
	int number;
	int socket;
};

static volatile sig_atomic_t stopped;
static const char *log_path;
#ifndef WITH_RING
static FILE *log_file;
#endif

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

/* IPv4 clients come as ::ffff:192.0.2.1. SO_REUSEPORT: the kernel spreads
 * clients over the threads' sockets. */
static int listen_on(unsigned long port)
{
	struct sockaddr_in6 address = {
		.sin6_family = AF_INET6,
		.sin6_port = htons((uint16_t)port),
	};
	/* So often `stopped` is looked at. */
	struct timeval wait = { .tv_usec = 100000 };
	int yes = 1, no = 0;
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof(yes)) != 0 ||
	    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no)) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) != 0 ||
	    bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static void *serve(void *argument)
{
	struct server *server = argument;
	char packet[2048], client[INET6_ADDRSTRLEN], line[128];
#ifdef WITH_RING
	weir_ring_writer *writer;
	char path[4096];

	snprintf(path, sizeof(path), "%s/worker-%d", log_path, server->number);
	if (weir_ring_writer_create(&writer, path, NULL) != 0) {
		fprintf(stderr, "%s\n", weir_ring_last_error());
		exit(1);
	}
#endif
	while (!stopped) {
		struct sockaddr_in6 from;
		socklen_t size = sizeof(from);
		ssize_t got = recvfrom(server->socket, packet, sizeof(packet), 0,
		                       (struct sockaddr *)&from, &size);
		int length;

		if (got < 0)
			continue;
		if (got == 5 && memcmp(packet, "hello", 5) == 0) {
			(void)sendto(server->socket, "welcome", 7, 0,
			             (struct sockaddr *)&from, size);
			continue;
		}
		/* Never the packet itself: that is the client's text. */
		inet_ntop(AF_INET6, &from.sin6_addr, client, sizeof(client));
		length = snprintf(line, sizeof(line), "unwanted request from %s, %zd bytes",
		                  client, got);
#ifdef WITH_RING
		/* Full: dropped and counted. The server goes on. */
		(void)weir_ring_write(writer, line, (size_t)length);
#else
		(void)length;
		fprintf(log_file, "%s\n", line);
		fflush(log_file);
#endif
	}
#ifdef WITH_RING
	weir_ring_writer_close(writer);
#endif
	return NULL;
}

int main(int argc, char **argv)
{
	static struct server servers[MAX_THREADS];
	struct sigaction action = { .sa_handler = stop };
	unsigned long port = argc > 2 ? strtoul(argv[1], NULL, 10) : 0;
	long threads = argc > 3 ? strtol(argv[3], NULL, 10) : 2;

	if (port == 0 || port > 65535 || threads < 1 || threads > MAX_THREADS) {
		fprintf(stderr, "usage: %s PORT LOG [THREADS]\n", argv[0]);
		return 2;
	}
	log_path = argv[2];
#ifndef WITH_RING
	log_file = fopen(log_path, "ae");
	if (log_file == NULL) {
		fprintf(stderr, "%s: %s\n", log_path, strerror(errno));
		return 1;
	}
#endif
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	for (int i = 0; i < threads; i++) {
		servers[i].number = i;
		servers[i].socket = listen_on(port);
		if (servers[i].socket < 0) {
			fprintf(stderr, "port %lu: %s\n", port, strerror(errno));
			return 1;
		}
		if (pthread_create(&servers[i].thread, NULL, serve, &servers[i]) != 0) {
			fprintf(stderr, "no thread\n");
			return 1;
		}
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(servers[i].thread, NULL);
		close(servers[i].socket);
	}
	return 0;
}
