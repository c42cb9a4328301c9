"""What every FileOps and ExecOps must do, and what local ones do, asked of another machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

import pytest

from evoclaw.executors.ssh.connection import SshConnection
from evoclaw.executors.ssh.files import SshFiles
from evoclaw.executors.ssh.processes import SshProcesses
from tests.executors import test_file_walk as test_walking
from tests.executors import test_local_files, test_process_cleanup, test_processes
from tests.support.sshd import Sshd, sshd
from tests.tools import test_ops_contract

# Not imported yet: that is for the process that runs these tests.
if find_spec("asyncssh") is None:
    pytest.skip("asyncssh is not installed", allow_module_level=True)

test_a_huge_sparse_file_is_not_read_whole = (
    test_local_files.test_a_huge_sparse_file_is_not_read_whole
)
test_a_write_creates_folders_keeps_the_mode_and_leaves_no_temporary_file = (
    test_local_files.test_a_write_creates_folders_keeps_the_mode_and_leaves_no_temporary_file
)
test_a_write_to_a_folder_or_below_a_file_is_refused = (
    test_local_files.test_a_write_to_a_folder_or_below_a_file_is_refused
)
test_absolute_paths_inside_the_root_are_accepted = (
    test_local_files.test_absolute_paths_inside_the_root_are_accepted
)
test_fault_38_symlinks_out_of_the_root_are_refused = (
    test_local_files.test_fault_38_symlinks_out_of_the_root_are_refused
)
test_fault_38_pipes_sockets_and_devices_are_refused_without_hanging = (
    test_local_files.test_fault_38_pipes_sockets_and_devices_are_refused_without_hanging
)
test_fault_39_and_40_odd_names_are_taken_literally = (
    test_local_files.test_fault_39_and_40_odd_names_are_taken_literally
)
test_fault_39_invalid_paths_are_refused = test_local_files.test_fault_39_invalid_paths_are_refused
test_symlinks_inside_the_root_are_read_but_never_written_through = (
    test_local_files.test_symlinks_inside_the_root_are_read_but_never_written_through
)
test_a_byte_range_of_a_file_is_read = test_local_files.test_a_byte_range_of_a_file_is_read
test_a_missing_file_error_suggests_a_similar_name = (
    test_local_files.test_a_missing_file_error_suggests_a_similar_name
)
test_a_terminated_command_gets_time_to_clean_up = (
    test_process_cleanup.test_a_terminated_command_gets_time_to_clean_up
)
test_a_second_cancel_does_not_interrupt_the_cleanup = (
    test_process_cleanup.test_a_second_cancel_does_not_interrupt_the_cleanup
)
test_a_timeout_leaves_no_process_running = (
    test_process_cleanup.test_a_timeout_leaves_no_process_running
)
test_cancelling_during_the_start_leaves_no_process = (
    test_process_cleanup.test_cancelling_during_the_start_leaves_no_process
)
test_fault_30_cancelling_kills_a_process_tree_that_keeps_forking = (
    test_process_cleanup.test_fault_30_cancelling_kills_a_process_tree_that_keeps_forking
)
test_many_commands_run_concurrently = test_process_cleanup.test_many_commands_run_concurrently
test_fault_28_a_hundred_megabytes_of_output_leave_memory_flat = (
    test_processes.test_fault_28_a_hundred_megabytes_of_output_leave_memory_flat
)
test_fault_29_output_bytes_are_passed_through_unchanged = (
    test_processes.test_fault_29_output_bytes_are_passed_through_unchanged
)
test_fault_34_reading_stdin_or_the_terminal_does_not_block = (
    test_processes.test_fault_34_reading_stdin_or_the_terminal_does_not_block
)
test_fault_41_arguments_are_never_parsed_as_launcher_options = (
    test_processes.test_fault_41_arguments_are_never_parsed_as_launcher_options
)
test_stdin_is_the_given_bytes_or_empty = test_processes.test_stdin_is_the_given_bytes_or_empty
test_long_output_keeps_head_and_tail_and_counts_the_rest = (
    test_processes.test_long_output_keeps_head_and_tail_and_counts_the_rest
)
test_commands_inherit_no_file_descriptor = test_processes.test_commands_inherit_no_file_descriptor
test_output_exit_code_and_isolation_are_reported = (
    test_processes.test_output_exit_code_and_isolation_are_reported
)
test_output_is_streamed_without_splitting_characters = (
    test_processes.test_output_is_streamed_without_splitting_characters
)
test_a_command_that_cannot_be_started_is_refused = (
    test_processes.test_a_command_that_cannot_be_started_is_refused
)
test_a_walk_can_skip_a_folder = test_walking.test_a_walk_can_skip_a_folder
test_a_walk_is_sorted_and_yields_links_without_following = (
    test_walking.test_a_walk_is_sorted_and_yields_links_without_following
)
test_walking_a_path_that_is_not_a_folder_is_refused = (
    test_walking.test_walking_a_path_that_is_not_a_folder_is_refused
)
test_fault_31_a_large_folder_is_walked_in_batches_and_can_be_cancelled = (
    test_walking.test_fault_31_a_large_folder_is_walked_in_batches_and_can_be_cancelled
)
test_a_command_returns_exit_code_output_and_byte_counts = (
    test_ops_contract.test_a_command_returns_exit_code_output_and_byte_counts
)
test_a_command_cannot_start_outside_the_root_or_in_a_missing_folder = (
    test_ops_contract.test_a_command_cannot_start_outside_the_root_or_in_a_missing_folder
)
test_a_walk_is_sorted_with_folders_before_their_contents = (
    test_ops_contract.test_a_walk_is_sorted_with_folders_before_their_contents
)
test_an_unknown_shell_command_exits_with_127 = (
    test_ops_contract.test_an_unknown_shell_command_exits_with_127
)
test_folders_and_files_are_not_confused = test_ops_contract.test_folders_and_files_are_not_confused
test_invalid_paths_are_refused = test_ops_contract.test_invalid_paths_are_refused
test_no_path_leaves_the_root = test_ops_contract.test_no_path_leaves_the_root
test_a_written_file_can_be_read_in_ranges_and_stat_reports_it = (
    test_ops_contract.test_a_written_file_can_be_read_in_ranges_and_stat_reports_it
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
async def connection(server: Sshd) -> AsyncGenerator[SshConnection]:
    async with server.connection() as made:
        yield made


@pytest.fixture
def files(request: pytest.FixtureRequest, connection: SshConnection, tmp_path: Path) -> SshFiles:
    if "contract" in request.function.__module__:
        return SshFiles(connection, str(tmp_path))
    (tmp_path / "ws" / "folder").mkdir(parents=True)
    (tmp_path / "ws" / "folder" / "inner.txt").write_text("inner")
    (tmp_path / "secret.txt").write_text("secret")
    return SshFiles(connection, str(tmp_path / "ws"))


@pytest.fixture(params=["auto", "sh"])
def processes(
    request: pytest.FixtureRequest, connection: SshConnection, tmp_path: Path
) -> SshProcesses:
    return SshProcesses(
        connection, str(tmp_path), supervision=cast('Literal["auto", "sh"]', request.param)
    )
