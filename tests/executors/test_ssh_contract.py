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
from tests.executors import test_local_files, test_process_ends, test_processes
from tests.support.sshd import Sshd, sshd
from tests.tools import test_ops_contract

# Not imported yet: that is for the process that runs these tests.
if find_spec("asyncssh") is None:
    pytest.skip("asyncssh is not installed", allow_module_level=True)

test_a_sparse_giant_is_not_read_whole = test_local_files.test_a_sparse_giant_is_not_read_whole
test_a_write_makes_folders_keeps_the_mode_and_leaves_no_draft = (
    test_local_files.test_a_write_makes_folders_keeps_the_mode_and_leaves_no_draft
)
test_a_write_to_a_folder_or_below_a_file_is_refused = (
    test_local_files.test_a_write_to_a_folder_or_below_a_file_is_refused
)
test_absolute_paths_inside_the_root_are_taken = (
    test_local_files.test_absolute_paths_inside_the_root_are_taken
)
test_fault_38_links_to_the_outside_are_refused = (
    test_local_files.test_fault_38_links_to_the_outside_are_refused
)
test_fault_38_pipes_sockets_and_devices_are_refused_without_hanging = (
    test_local_files.test_fault_38_pipes_sockets_and_devices_are_refused_without_hanging
)
test_fault_39_and_40_odd_names_are_taken_literally = (
    test_local_files.test_fault_39_and_40_odd_names_are_taken_literally
)
test_fault_39_what_can_be_no_path_is_refused = (
    test_local_files.test_fault_39_what_can_be_no_path_is_refused
)
test_links_inside_are_read_but_never_written_through = (
    test_local_files.test_links_inside_are_read_but_never_written_through
)
test_part_of_a_file_is_read = test_local_files.test_part_of_a_file_is_read
test_what_is_missing_is_answered_with_what_is_near = (
    test_local_files.test_what_is_missing_is_answered_with_what_is_near
)
test_a_command_that_is_asked_to_end_may_clean_up = (
    test_process_ends.test_a_command_that_is_asked_to_end_may_clean_up
)
test_a_second_cancel_does_not_cut_the_clean_up_short = (
    test_process_ends.test_a_second_cancel_does_not_cut_the_clean_up_short
)
test_a_timeout_leaves_nothing_running = test_process_ends.test_a_timeout_leaves_nothing_running
test_cancelling_at_any_moment_of_the_start_leaves_nothing = (
    test_process_ends.test_cancelling_at_any_moment_of_the_start_leaves_nothing
)
test_fault_30_a_tree_that_keeps_forking_is_gone_after_a_cancel = (
    test_process_ends.test_fault_30_a_tree_that_keeps_forking_is_gone_after_a_cancel
)
test_many_commands_run_side_by_side = test_process_ends.test_many_commands_run_side_by_side
test_fault_28_a_hundred_megabytes_leave_memory_flat = (
    test_processes.test_fault_28_a_hundred_megabytes_leave_memory_flat
)
test_fault_29_any_bytes_come_through = test_processes.test_fault_29_any_bytes_come_through
test_fault_34_reading_stdin_or_the_terminal_ends_at_once = (
    test_processes.test_fault_34_reading_stdin_or_the_terminal_ends_at_once
)
test_fault_41_arguments_are_never_read_as_options_of_ours = (
    test_processes.test_fault_41_arguments_are_never_read_as_options_of_ours
)
test_input_is_what_was_given_and_else_nothing = (
    test_processes.test_input_is_what_was_given_and_else_nothing
)
test_long_output_keeps_head_and_tail_and_counts_the_rest = (
    test_processes.test_long_output_keeps_head_and_tail_and_counts_the_rest
)
test_no_descriptor_of_ours_is_inherited = test_processes.test_no_descriptor_of_ours_is_inherited
test_output_exit_code_and_isolation_are_reported = (
    test_processes.test_output_exit_code_and_isolation_are_reported
)
test_output_is_streamed_and_characters_are_never_torn = (
    test_processes.test_output_is_streamed_and_characters_are_never_torn
)
test_what_cannot_be_started_is_refused_in_words = (
    test_processes.test_what_cannot_be_started_is_refused_in_words
)
test_a_walk_can_leave_out_a_folder = test_walking.test_a_walk_can_leave_out_a_folder
test_a_walk_is_sorted_and_yields_links_without_following = (
    test_walking.test_a_walk_is_sorted_and_yields_links_without_following
)
test_a_walk_of_what_is_no_folder_is_refused = (
    test_walking.test_a_walk_of_what_is_no_folder_is_refused
)
test_fault_31_a_wide_folder_is_walked_in_batches_and_can_be_left = (
    test_walking.test_fault_31_a_wide_folder_is_walked_in_batches_and_can_be_left
)
test_a_command_answers_with_code_output_and_counts = (
    test_ops_contract.test_a_command_answers_with_code_output_and_counts
)
test_a_command_cannot_start_outside_or_nowhere = (
    test_ops_contract.test_a_command_cannot_start_outside_or_nowhere
)
test_a_walk_is_in_order_folders_before_what_is_in_them = (
    test_ops_contract.test_a_walk_is_in_order_folders_before_what_is_in_them
)
test_an_unknown_command_in_a_shell_ends_with_127 = (
    test_ops_contract.test_an_unknown_command_in_a_shell_ends_with_127
)
test_folders_and_files_are_not_mixed_up = test_ops_contract.test_folders_and_files_are_not_mixed_up
test_no_nonsense_is_a_path = test_ops_contract.test_no_nonsense_is_a_path
test_no_path_leaves = test_ops_contract.test_no_path_leaves
test_what_is_written_can_be_read_in_parts_and_looked_at = (
    test_ops_contract.test_what_is_written_can_be_read_in_parts_and_looked_at
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
