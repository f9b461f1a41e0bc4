/* Writes lines of standard input to a segment: writer PATH */
#include <stdio.h>
#include <string.h>
#include <weir_ring.h>

int main(int argc, char **argv)
{
	weir_ring_writer *writer;
	char line[4096];

	if (argc != 2) {
		fprintf(stderr, "usage: %s PATH\n", argv[0]);
		return 2;
	}
	if (weir_ring_writer_create(&writer, argv[1], NULL) != 0) {
		fprintf(stderr, "%s\n", weir_ring_last_error());
		return 1;
	}
	while (fgets(line, sizeof(line), stdin) != NULL) {
		size_t length = strcspn(line, "\n");

		/* A record that does not fit is counted; a server goes on. */
		(void)weir_ring_write(writer, line, length);
	}
	fprintf(stderr, "%llu dropped\n",
	        (unsigned long long)weir_ring_writer_dropped(writer));
	weir_ring_writer_close(writer);
	return 0;
}
